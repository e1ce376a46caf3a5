"""Which log a lake is a copy of, and which content a model version has: recorded with every export.

A note is the number of an application transaction of the table `log`, which Delta keeps through every checkpoint and
vacuum. An id or a digest is recorded by its first fifteen hexadecimal digits, which fit into such a number and are
enough to distinguish two of them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from unisono.vocabulary import LogIdentity

DIGITS: Final = 15

LOG_ID: Final = "unisono.log_id"
LOG_EPOCH: Final = "unisono.log_epoch"
MODEL: Final = "unisono.model"


class Origin(msgspec.Struct, frozen=True):
    """A log, and its model in force; `model_version` 0 is none."""

    log: LogIdentity
    model_version: int = 0
    model_digest: str = ""

    def notes(self) -> dict[str, int]:
        """Its notes, by name."""
        noted = {LOG_ID: number(self.log.log_id), LOG_EPOCH: self.log.log_epoch}
        if self.model_version:
            noted[f"{MODEL}.{self.model_version}"] = number(self.model_digest)
        return noted


def number(text: str) -> int:
    """The note of an id or a digest: from its hexadecimal digits, or else from its bytes."""
    try:
        return int(text[:DIGITS], 16)
    except ValueError:
        return int.from_bytes(text.encode()[:7], "big")


def note_text(noted: int) -> str:
    """The first 12 digits of a note, the length of digests in messages."""
    return f"{noted:0{DIGITS}x}"[:12]
