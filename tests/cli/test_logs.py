"""Log lines: text for people, JSON with a field for every value, and no secret in either."""

from __future__ import annotations

import ast
import io
import json
import logging
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pytest

import unisono
from unisono.cli.logs import HIDDEN, LogFormatter
from unisono.cli.settings import secrets_of
from unisono.config import Settings
from unisono.front.auth.verify import sign_token

Form = Literal["text", "json"]
Lines = Callable[..., tuple[logging.Logger, io.StringIO]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """A logger of its own with the formatter under test, and what it wrote."""
    logger = logging.getLogger("unisono.test")
    logger.propagate = False

    def started(form: Form, *secrets: str) -> tuple[logging.Logger, io.StringIO]:
        written = io.StringIO()
        handler = logging.StreamHandler(written)
        handler.setFormatter(LogFormatter(form, secrets))
        logger.handlers[:] = [handler]
        return logger, written

    yield started
    logger.handlers.clear()
    logger.propagate = True


def test_a_text_line_has_the_time_with_milliseconds_and_zone(lines: Lines) -> None:
    log, written = lines("text")
    log.error("front %d disconnected", 2, extra={"front": 2})
    time, rest = written.getvalue().split(" ", 1)
    assert rest == "ERROR   unisono.test: front 2 disconnected\n"
    assert time == datetime.fromisoformat(time).isoformat(timespec="milliseconds")
    assert datetime.fromisoformat(time).tzinfo is not None
    assert abs(datetime.now().astimezone() - datetime.fromisoformat(time)).total_seconds() < 60


def test_a_json_line_has_a_field_for_every_value(lines: Lines) -> None:
    log, written = lines("json")
    log.warning(
        "front %d lost the %s",
        2,
        "reader",
        extra={"front": 2, "peer": "reader", "partitions": ("p", "ä"), "error": OSError(5, "no disk")},
    )
    fields = json.loads(written.getvalue())
    assert datetime.fromisoformat(fields["time"]).tzinfo is not None
    assert fields["time"] == datetime.fromisoformat(fields["time"]).isoformat(timespec="milliseconds")
    assert isinstance(fields.pop("pid"), int)
    assert fields.pop("process")
    del fields["time"]
    assert fields == {
        "level": "warning",
        "logger": "unisono.test",
        "message": "front 2 lost the reader",
        "front": 2,
        "peer": "reader",
        "partitions": ["p", "ä"],
        "error": "[Errno 5] no disk",
    }


def test_a_json_line_is_one_line_whatever_it_says(lines: Lines) -> None:
    log, written = lines("json")
    try:
        raise ValueError('two\nlines and a "quote"')
    except ValueError:
        log.exception("a\nb", extra={"level": "mine", "where": "c\nd"})
    fields = json.loads(written.getvalue())
    assert written.getvalue().count("\n") == 1
    assert fields["message"] == "a\nb"
    assert fields["where"] == "c\nd"
    assert fields["level"] == "error", "the fields of every line cannot be replaced"
    assert 'ValueError: two\nlines and a "quote"' in fields["exception"]


@pytest.mark.req("AUTH-08")
@pytest.mark.parametrize("form", ["text", "json"])
def test_no_line_has_a_secret(form: Form, lines: Lines) -> None:
    token = sign_token(b"x" * 32, "alice", ttl_s=60, now_s=0)
    quoted = 'pass"word with\\quotes'
    log, written = lines(form, "a known secret", quoted, "eu")
    try:
        raise RuntimeError(f"refused {token}")
    except RuntimeError:
        log.exception(
            "cannot reach %s with %s in eu (%s)",
            "postgresql://alice:hunter2@db.example/log",
            "a known secret",
            quoted,
            extra={"order_token": "tok", "jwt_secret": "sec", "store": f"https://u:hunter2@h/{token}"},
        )
    said = written.getvalue()
    for secret in (token, token.split(".")[1], "hunter2", "a known secret", "quotes", '"tok"', '"sec"'):
        assert secret not in said
    assert f"postgresql://{HIDDEN}@db.example/log" in said, "what is no secret stays"
    assert " in eu " in said


def test_the_secrets_of_the_settings_are_known() -> None:
    settings = Settings(
        store="postgresql://alice:p%40ssword@db.example/log?password=also%20this",
        archive_options={"aws_secret_access_key": "hunter2hunter2", "aws_region": "eu-central-1"},
    )
    assert set(secrets_of(settings)) == {
        "p%40ssword",
        "p@ssword",
        "also this",
        "also%20this",
        "hunter2hunter2",
    }
    assert list(secrets_of(Settings())) == []


SOURCES = Path(unisono.__file__).parent


@pytest.mark.parametrize("room", ["front", "node"])
def test_every_value_of_a_log_line_is_a_field_too(room: str) -> None:
    """A message with values has `extra=`, whose keys are no names that a record has already."""
    taken = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "time", "level", "logger", "pid"}
    for path in sorted((SOURCES / room).rglob("*.py")):
        for call in _log_calls(ast.parse(path.read_text())):
            extra = next((each.value for each in call.keywords if each.arg == "extra"), None)
            where = f"{path.name}:{call.lineno}"
            if len(call.args) > 1:
                assert extra is not None, f"{where}: values without extra="
            if isinstance(extra, ast.Dict):
                keys = {key.value for key in extra.keys if isinstance(key, ast.Constant)}
                assert not keys & taken, where


def _log_calls(tree: ast.AST) -> Iterator[Any]:
    levels = {"debug", "info", "warning", "error", "critical", "exception"}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in levels
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "log"
        ):
            yield node
