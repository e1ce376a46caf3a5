"""Write what the documentation takes from the code: `python -m tests.docs.generate`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.docs.conversation import PAGES as CONVERSATION
from tests.docs.conversation import hold, spliced
from tests.docs.reference import PAGES

ROOT = Path(__file__).parents[2]


def write() -> None:
    """Bring every generated page, and every generated part of a page, up to date."""
    texts = {path: make() for path, make in PAGES.items()}
    examples = hold()
    for page in CONVERSATION:
        texts[page] = spliced((ROOT / page).read_text(encoding="utf-8"), examples)
    for path, text in texts.items():
        file = ROOT / path
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        file.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}: {'unchanged' if text == before else 'written'}\n")


if __name__ == "__main__":
    write()
