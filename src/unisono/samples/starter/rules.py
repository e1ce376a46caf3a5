"""When events are refused, and what they do to the state of a partition, which begins as {}.

A check returns what is wrong, or nothing; every check of an event's schema must agree. A reducer changes the state.
The same functions run in the server, in Python clients and on Spark: they see the state and the event, nothing else.
"""

from __future__ import annotations

from typing import Any

from unisono.model.rules import Event, FieldError, Rules, refuse

rules = Rules()


@rules.check("task.added")
def task_is_new(state: dict[str, Any], event: Event) -> list[FieldError]:
    known = event.data["id"] in state.get("tasks", {})
    return [refuse("id", "there is already a task of this id")] if known else []


@rules.check("task.done")
def task_is_open(state: dict[str, Any], event: Event) -> list[FieldError]:
    task = state.get("tasks", {}).get(event.data["id"])
    if task is None:
        return [refuse("id", "there is no such task")]
    return [refuse("id", "this task is done already")] if task["done"] else []


@rules.reduce("task.added")
def add_task(state: dict[str, Any], event: Event) -> None:
    state.setdefault("tasks", {})[event.data["id"]] = {"title": event.data["title"], "done": False}


@rules.reduce("task.done")
def finish_task(state: dict[str, Any], event: Event) -> None:
    state["tasks"][event.data["id"]]["done"] = True
