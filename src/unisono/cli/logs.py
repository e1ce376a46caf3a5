"""Log lines on stderr, as text for people or as JSON for machines.

A log call has its values in the message and, as `extra=`, by name: `log.info("front %d lost the %s", 2, "reader",
extra={"front": 2, "peer": "reader"})`. Text shows the message; JSON has each value as a field of its own.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal

NOT_EXTRA: Final = frozenset({*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"})
"""Attributes that every log record has; any other attribute came with `extra=`."""

HIDDEN: Final = "[hidden]"

SECRET_TEXT: Final = re.compile(r"(?<=://)[^/?#\s@\"']+(?=@)|\beyJ[\w-]{5,}\.[\w-]+(?:\.[\w-]*)?")
"""User and password of a URL; a JSON Web Token."""

SECRET_FIELD: Final = re.compile(r"secret|token|passw|credential|authorization", re.IGNORECASE)
"""Names of `extra=` keys whose values are never written."""

MIN_SECRET_CHARACTERS: Final = 8
"""Shorter values of a setting are ordinary words such as a region: hiding them would garble every line."""


class LogFormatter(logging.Formatter):
    """Formats records as text or as JSON. No line has a secret: neither `secrets` nor what looks like one."""

    def __init__(self, form: Literal["text", "json"], secrets: Iterable[str] = ()) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self._json = form == "json"
        spellings = {
            spelling
            for secret in secrets
            if len(secret) >= MIN_SECRET_CHARACTERS
            for spelling in (secret, json.dumps(secret, ensure_ascii=False)[1:-1])
        }
        self._secrets = sorted(spellings, key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        line = self._object(record) if self._json else super().format(record)
        for secret in self._secrets:
            line = line.replace(secret, HIDDEN)
        return SECRET_TEXT.sub(HIDDEN, line)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802
        """Local time in ISO 8601 with milliseconds and the zone's offset."""
        return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")

    def _object(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.processName,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        for name, value in record.__dict__.items():
            if name not in NOT_EXTRA:
                fields.setdefault(name, HIDDEN if SECRET_FIELD.search(name) else value)
        return json.dumps(fields, ensure_ascii=False, default=str)


def set_up(form: Literal["text", "json"], level: str, secrets: Iterable[str] = ()) -> None:
    """Log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter(form, secrets))
    logging.basicConfig(level=getattr(logging, level.upper()), handlers=[handler], force=True)
