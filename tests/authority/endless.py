"""A model whose rules do not return, each in its own way."""

from __future__ import annotations

from pathlib import Path

RULES = '''
import re
import time

from unisono.model.rules import Rules, refuse

rules = Rules()


@rules.check("loops")
def loops(state, event):
    while True:
        state.get("count")


@rules.check("generates")
def generates(state, event):
    yield refuse("", "something")
    while True:
        pass


@rules.check("swallows")
def swallows(state, event):
    for _ in range(20):
        try:
            while True:
                pass
        except BaseException:
            pass


@rules.check("backtracks")
def backtracks(state, event):
    re.match(r"(a+)+$", "a" * 40 + "b")


@rules.check("sleeps")
def sleeps(state, event):
    time.sleep(600)


@rules.check("adds")
def adds(state, event):
    sum(range(10**13))


@rules.check("lingers")
def lingers(state, event):
    until = time.perf_counter() + event.data["for_s"]
    while time.perf_counter() < until:
        pass


@rules.reduce("changes")
def changes(state, event):
    """Whenever it is stopped, it is in the middle of changing something."""
    numbers = state.setdefault("numbers", [])
    while True:
        state["count"] = state.get("count", 0) + 1
        numbers.append({"n": [state["count"]]})
        numbers[-1]["n"].append("x" * 100)
        state["at"] = {"all": numbers[-3:], str(state["count"] % 7): 1}
        if len(numbers) > 50:
            del numbers[10:40:3]
            numbers.sort(key=lambda each: -each["n"][0])
            state.pop("at")


@rules.check("keeps")
def looks(state, event):
    return [] if "value" in event.data else [refuse("value", "is missing")]


@rules.reduce("keeps")
def keeps(state, event):
    state["last"] = {"count": 1, "data": event.data}


@rules.reduce("counts", "lingers")
def counts(state, event):
    state["count"] = state.get("count", 0) + 1
'''

SCHEMAS = (
    "loops",
    "generates",
    "swallows",
    "backtracks",
    "sleeps",
    "adds",
    "lingers",
    "changes",
    "counts",
    "keeps",
)


def write_endless_model(place: Path) -> Path:
    (place / "schemas").mkdir(parents=True)
    for schema in SCHEMAS:
        (place / "schemas" / f"{schema}.json").write_text("{}")
    (place / "rules.py").write_text(RULES)
    (place / "model.toml").write_text('name = "endless"\nmodel_version = 1\nrules = "rules.py"\n')
    return place
