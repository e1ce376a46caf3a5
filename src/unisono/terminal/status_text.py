"""Text of the screen: the status line, and what a refused draft was to do."""

from __future__ import annotations

import time
from typing import Final

from rich.text import Text

from unisono.client import Phase, Problem, Rejected, Status
from unisono.display import blank_controls, shorten
from unisono.terminal.edits import touched
from unisono.terminal.outline import Outline
from unisono.vocabulary import Json, JsonObject

TONES: Final = {
    Phase.OFFLINE: "bold red",
    Phase.CONNECTING: "bold yellow",
    Phase.SYNCING: "bold cyan",
    Phase.LIVE: "bold green",
}


def status_line(status: Status, partition: str, paused: bool) -> Text:
    """Phase, cursor, drafts; and in a second line what went wrong last."""
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"● {status.phase.value}", TONES[status.phase])
    if paused:
        line.append(" on purpose, o goes online", "dim")
    line.append(f"   cursor {status.cursors.get(partition, 0)}")
    line.append(f"   {status.pending} pending", "yellow" if status.pending else "")
    if status.drafts_set_aside:
        line.append(f"   {len(status.drafts_set_aside)} set aside", "bold red")
    if status.rejected:
        line.append(f"   {status.rejected} rejected", "bold red")
    trouble = _trouble(status, partition)
    if trouble is not None:
        line.append("\n")
        line.append_text(trouble)
    return line


def _trouble(status: Status, partition: str) -> Text | None:
    if status.stopped is not None:
        return Text(f"stopped: {blank_controls(status.stopped)}; o tries again", "red")
    if partition in status.set_aside:
        return Text(
            f"the server refuses this partition: {blank_controls(status.set_aside[partition])}", "red"
        )
    if status.last_error is not None:
        return Text(_problem_text(status.last_error), "dim" if status.phase is Phase.LIVE else "red")
    return None


def _problem_text(problem: Problem) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(problem.at_ms / 1000))
    return f"last error {at} {problem.code}: {blank_controls(problem.message)}"


def wish(event: JsonObject, outline: Outline) -> str:
    """What an event does, in the words of the outline."""
    id = touched(event, outline.target)
    payload = event.get("payload")
    if id is None or not isinstance(payload, dict):
        return f"{blank_controls(str(event.get('type')))} {blank_controls(_target(payload))}".rstrip()
    row = outline.find(id)
    item = "an item that is gone" if row is None else quoted(row.title)
    given = _given(payload.get("value"))
    match event.get("type"):
        case "treePush":
            return f"add {quoted(given or id)}"
        case "treeUpdate" if given is not None:
            return f"rename {item} to {quoted(given)}"
        case "treeMove":
            return f"move {item}"
        case "treeDelete":
            return f"delete {item}"
    return f"change {item}"


def rejection(rejected: Rejected, outline: Outline) -> Text:
    """A refused draft with the server's reasons, a line each."""
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(wish(rejected.event, outline), "bold")
    text.append(f"  {blank_controls(rejected.reason)}", "red")
    for error in rejected.errors:
        text.append(f"\n  {blank_controls(error.field)}: {blank_controls(error.message)}", "dim")
    return text


def _target(payload: Json) -> str:
    return str(payload.get("target", "")) if isinstance(payload, dict) else ""


def _given(value: Json) -> str | None:
    """The title in an event's value."""
    title = value.get("title", value.get("name")) if isinstance(value, dict) else None
    return title if isinstance(title, str) else None


def quoted(title: str, length_max: int = 40) -> str:
    """A title within a sentence, shortened."""
    return f"“{shorten(blank_controls(title), length_max)}”"
