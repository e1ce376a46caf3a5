"""Every rule of requirements.md and extensions.md has a test that names it, and tests name only rules there are.

The marks are read from the sources, not collected by pytest, so the answer does not depend on which tests were
selected for this run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
PAGES = [TESTS.parent / "docs" / "protocol" / name for name in ("requirements.md", "extensions.md")]
_RULE = re.compile(r"- \*\*([A-Z]+-\d{2})\*\* ")


def rules(page: str) -> list[str]:
    """The ids of a page, in its order."""
    return [match[1] for line in page.splitlines() if (match := _RULE.match(line))]


def _rules_of_all_pages() -> list[str]:
    return [id for page in PAGES for id in rules(page.read_text(encoding="utf-8"))]


def marks(source: str) -> Iterator[tuple[int, str | None]]:
    """Line and id of every `pytest.mark.req(…)`; None where an argument is not written out as a string."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.req":
            for argument in node.args:
                written = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                yield argument.lineno, ast.literal_eval(argument) if written else None


def _named() -> dict[str, list[str]]:
    """id → where tests name it; the id is empty where it cannot be read."""
    found: dict[str, list[str]] = {}
    for file in sorted(TESTS.rglob("*.py")):
        for line, id in marks(file.read_text(encoding="utf-8")):
            found.setdefault(id or "", []).append(f"{file.relative_to(TESTS.parent)}:{line}")
    return found


def test_every_rule_has_a_test() -> None:
    due = _rules_of_all_pages()
    named = _named()
    missing = [id for id in due if id not in named]
    assert not missing, f"{len(missing)} of {len(due)} rules have no test: {' '.join(missing)}"


def test_tests_name_only_rules_there_are() -> None:
    due = set(_rules_of_all_pages())
    strangers = {id: places for id, places in _named().items() if id not in due}
    assert not strangers, f"these marks are not strings, or name rules that both pages lack: {strangers}"


def test_no_rule_stands_twice() -> None:
    due = _rules_of_all_pages()
    assert len(due) == len(set(due))


def test_the_page_is_read_as_meant() -> None:
    page = "## A: a\n- **A-01** x\n  y\n## B: b\n\n- **B-01** x\n- B-02 x\n"
    assert rules(page) == ["A-01", "B-01"]


def test_marks_are_found_wherever_they_stand() -> None:
    source = """
pytestmark = [pytest.mark.req("A-01")]

@pytest.mark.req("B-01", "B-02")
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.req(NAME))])
def test_it(x): ...

class TestThat:
    @pytest.mark.req("C-01")
    async def test_it(self): ...
"""
    assert sorted(id or "" for _, id in marks(source)) == ["", "A-01", "B-01", "B-02", "C-01"]
