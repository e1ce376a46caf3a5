"""The picture of the page about the terminal client: `python -m tests.terminal.picture` makes it anew."""

from __future__ import annotations

import asyncio
import re
import tempfile
from html import unescape
from pathlib import Path

from tests.behaviour.server.harness import Server, running
from tests.client.running import until
from tests.terminal.screens import screen
from unisono.samples import sample_model

PICTURE = Path(__file__).parents[2] / "docs" / "terminal.svg"


async def drawn(server: Server, part: str) -> str:
    """An outline with a draft that waits, as SVG that needs nothing from elsewhere."""
    async with screen(server, "alice", part, size=(80, 16)) as alice:
        await alice.add("Groceries")
        await alice.press("c", *"milk", "enter", "a", *"bread", "enter", "a", *"tea", "enter")
        await alice.press("home", "left", "a", *"Garden", "enter")
        await alice.press("c", *"tomatoes", "enter", "a", *"basil", "enter")
        await alice.press("home", "right", "down")
        await alice.is_live()
        await alice.goes_offline()
        await alice.press("r", *" and oats", "enter")
        await alice.says("milk and oats ○", "1 pending")
        await alice.press("down")
        await until(lambda: "▊" not in alice.text and "delete" in alice.lines[-1])
        picture = alice.app.export_screenshot(title=f"unisono client --partition {part}")
    return re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)


def words(picture: str) -> list[str]:
    """What is written in it."""
    found = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    return [text for text in (unescape(each).replace("\xa0", " ").strip() for each in found) if text]


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        arguments = ("--model", str(sample_model()), "--access-default", "allow")
        with running(Path(place) / "data", *arguments) as server:
            PICTURE.write_text(asyncio.run(drawn(server, "welcome")), encoding="utf-8")


if __name__ == "__main__":
    main()
