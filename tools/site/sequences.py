"""Sequence diagrams of docs/protocol/five-minutes.md as SVG: `python tools/site/sequences.py` writes them.

Pictures, so that the pages need no script and no other host to show them. Colours follow the reader's light or dark
scheme. A line of a diagram is `from > to: text`, `from > to lost: text`, or `at: note`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).parents[2] / "docs" / "protocol"

DIAGRAMS = {
    "connect": (
        ("client", "server"),
        """
        client > server: connect (token, client_id, profiles)
        server: verifies the token
        server > client: connected (profile, limits, model_version, log_id)
        client > server: heartbeat
        server > client: heartbeat_ack
        """,
    ),
    "submit": (
        ("Bob's store", "Bob", "server", "log", "Alice"),
        """
        Bob > Bob's store: draft e1
        Bob > server: submit_events (e1)
        server: judges by the model
        server > log: commit group
        log > server: durable
        server > Bob: e1 committed, 42
        server > Alice: event_broadcast (e1, 42)
        Bob > Bob's store: e1 is 42, draft gone
        """,
    ),
    "retry": (
        ("client", "server", "log"),
        """
        client > server: submit_events (e1)
        server > log: commit: 42
        server > client lost: e1 committed, 42
        client: reconnects
        client > server: submit_events (e1)
        server > log: known: 42, same content
        server > client: e1 committed, 42
        """,
    ),
    "sync": (
        ("client", "server", "others"),
        """
        client > server: sync (partitions, since 40, subscribe)
        server: watermark is 95
        server > client: sync_response 41…90, has_more
        others > server: submit: becomes 96
        client > server: sync (since 90)
        server > client: sync_response 91…95
        server > client: event_broadcast 96
        """,
    ),
    "restored": (
        ("client", "server"),
        """
        client > server: submit_events (e7)
        server > client: e7 rejected: n1 is taken
        client: takes the draft back
        server: restored from a backup
        client > server: connect
        server > client: connected (another log_id)
        client > server: sync since 0, then its drafts
        """,
    ),
}

ROW, TOP, MARGIN = 34, 56, 100
COLUMNS = {2: 340, 3: 270, 5: 190}
"""Between two actors, by how many there are: the longest text has its room."""

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2430; }
  .actor { font-weight: 600; }
  .life { stroke: #9aa3b2; stroke-dasharray: 3 4; }
  .arrow { stroke: #2f6f8f; stroke-width: 1.5; marker-end: url(#head); }
  .lost { stroke: #b3261e; stroke-dasharray: 5 4; }
  .box { fill: #eef2f6; stroke: #9aa3b2; }
  .note { fill: #fff6dd; stroke: #d9b44a; }
  #head path { fill: #2f6f8f; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4e7ec; } .box { fill: #2a2f3a; } .note { fill: #4a3f1c; } .arrow { stroke: #7cc0de; }
    #head path { fill: #7cc0de; } .lost { stroke: #ff8a80; }
  }
"""


def draw(actors: tuple[str, ...], text: str) -> str:
    column = COLUMNS[len(actors)]
    lines = [line.strip() for line in text.strip().splitlines()]
    width, height = 2 * MARGIN + column * (len(actors) - 1), TOP + ROW * (len(lines) + 1)
    place = {actor: MARGIN + column * number for number, actor in enumerate(actors)}
    parts = []
    for actor, x in place.items():
        parts.append(f'<line class="life" x1="{x}" y1="34" x2="{x}" y2="{height - 10}"/>')
        parts.append(f'<rect class="box" x="{x - 60}" y="8" width="120" height="26" rx="5"/>')
        parts.append(_text(x, 26, actor, "actor"))
    for number, line in enumerate(lines):
        head, _, said = line.partition(": ")
        y = TOP + ROW * (number + 1)
        if " > " in head:
            sender, _, receiver = head.partition(" > ")
            lost = receiver.endswith(" lost")
            parts += _arrow(place[sender], place[receiver.removesuffix(" lost")], y, said, lost)
        else:
            half = max(60, len(said) * 4)
            parts.append(
                f'<rect class="note" x="{place[head] - half}" y="{y - 18}" width="{2 * half}" height="24" rx="4"/>'
            )
            parts.append(_text(place[head], y - 1, said))
    marker = (
        '<defs><marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
        '<path d="M0,0 L9,4 L0,8 z"/></marker></defs>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        f"<style>{STYLE}</style>\n{marker}\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _arrow(start: int, end: int, y: int, said: str, lost: bool) -> list[str]:
    stop = start + (end - start) * 0.6 if lost else end
    kind = "arrow lost" if lost else "arrow"
    cross = [_text(int(stop), y + 4, "✕")] if lost else []
    return [
        f'<line class="{kind}" x1="{start}" y1="{y}" x2="{stop:g}" y2="{y}"/>',
        _text((start + end) // 2, y - 6, said),
        *cross,
    ]


def _text(x: int, y: int, said: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<text{attribute} x="{x}" y="{y}" text-anchor="middle">{escape(said)}</text>'


def pictures() -> dict[Path, str]:
    return {DOCS / f"{name}.svg": draw(*diagram) for name, diagram in DIAGRAMS.items()}


if __name__ == "__main__":
    for path, svg in pictures().items():
        path.write_text(svg, encoding="utf-8")
        sys.stdout.write(f"{path.name}\n")
