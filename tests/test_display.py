"""Text for people."""

from __future__ import annotations

import pytest

from unisono import display


def test_a_long_text_is_shortened_to_its_bound() -> None:
    assert display.shorten("abcd", 4) == "abcd"
    assert display.shorten("abcde", 4) == "abc…"
    assert display.shorten_repr("abcd", 4) == "'abcd'"
    assert display.shorten_repr("ab'de", 4) == '"ab\'"…'


def test_untrusted_text_cannot_command_a_terminal_or_break_its_line() -> None:
    hostile = "a\x1b[2Jb\nc\u202ed\u2028e\x9bf"
    assert display.blank_controls(hostile) == "a [2Jb c d e f"
    assert display.escape_controls(hostile) == r"a\u001b[2Jb\u000ac\u202ed\u2028e\u009bf"
    assert display.replace_unprintable(hostile + "\ud800\uffff") == "a�[2Jb�c�d�e�f��"


def test_joiners_of_scripts_and_emoji_stay() -> None:
    assert display.blank_controls("\U0001f468\u200d\U0001f469") == "\U0001f468\u200d\U0001f469"


@pytest.mark.parametrize(
    ("uri", "safe"),
    [
        ("postgresql://me:secret@host/db", "postgresql://host/db"),
        ("postgresql://me:p@ss@host/db", "postgresql://host/db"),
        ("postgresql://db/log?user=me&password=p@ss&port=1", "postgresql://db/log?user=me&password=…&port=1"),
        ("postgresql://me:s@db/log?sslpassword=s", "postgresql://db/log?sslpassword=…"),
        ("postgresql://db/log?pass%77ord=s", "postgresql://db/log?pass%77ord=…"),
        ("sqlite:/data", "sqlite:/data"),
    ],
)
def test_a_uri_is_shown_without_its_password(uri: str, safe: str) -> None:
    assert display.hide_credentials(uri) == safe


def test_numbers_have_units() -> None:
    assert display.megabytes(1_250_000) == "1.2 MB"
    assert display.utc_time(0) == "1970-01-01T00:00:00.000+00:00"
    assert display.utc_time(10**18) == "1000000000000000000 ms"
