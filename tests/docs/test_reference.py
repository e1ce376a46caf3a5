"""The reference pages say what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.conversation import PAGES as CONVERSATION
from tests.docs.conversation import hold, shown, spliced
from tests.docs.reference import PAGES
from unisono.cli.setting_fields import FIELDS, section_and_help
from unisono.protocol.errors import WIRE_ERRORS, CloseCode
from unisono.protocol.messages import MESSAGE_TYPES

ROOT = Path(__file__).parents[2]
HOW = "run `python -m tests.docs.generate`"


@pytest.mark.parametrize("path", PAGES)
def test_a_reference_page_is_up_to_date(path: str) -> None:
    file = ROOT / path
    assert file.exists(), HOW
    assert file.read_text(encoding="utf-8") == PAGES[path](), HOW


@pytest.mark.req("LIM-05")
def test_every_bound_is_in_the_operations_page() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    bounds = [name for name in FIELDS if section_and_help(name)[0] in ("Limits", "Pressure", "States")]
    assert [name for name in bounds if f"`{name}`" not in page] == []


@pytest.mark.req("CONN-10", "ERR-01")
def test_every_code_is_in_the_messages_page() -> None:
    page = (ROOT / "docs" / "protocol" / "messages.md").read_text(encoding="utf-8")
    assert [code for code in CloseCode if f"| {code.value} |" not in page] == []
    for error in WIRE_ERRORS:
        effect = "open" if error.close_code is None else f"close {error.close_code.value}"
        assert f"| `{error.code}` | {effect} |" in page


def test_every_message_is_in_the_messages_page() -> None:
    page = (ROOT / "docs" / "protocol" / "messages.md").read_text(encoding="utf-8")
    assert [name for name in MESSAGE_TYPES if f"### {name}\n" not in page] == []


@pytest.mark.req("ENV-01", "BCAST-05")
def test_the_examples_of_the_messages_page_are_what_a_server_says() -> None:
    examples = hold()
    names: list[str] = []
    for name in CONVERSATION:
        page = (ROOT / name).read_text(encoding="utf-8")
        names += shown(page)
        assert spliced(page, examples) == page, HOW
    assert len(names) == len(set(names))
    assert {*names, "connect-compatibility", "sync-ahead"} == set(examples)
