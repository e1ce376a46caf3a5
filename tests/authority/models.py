"""A small model in a directory, in versions that judge and reduce differently."""

from __future__ import annotations

from pathlib import Path

from unisono.model.load import Model, load_model

RULES = """
import time

from unisono.model.rules import Rules, refuse

rules = Rules()
VERSION = {version}


@rules.check("counted")
def not_too_many(state, event):
    if state.get("count", 0) >= event.data.get("limit", 1_000_000):
        yield refuse("limit", f"version {{VERSION}} counts {{state['count']}}")


@rules.reduce("counted")
def counted(state, event):
    state["count"] = state.get("count", 0) + VERSION


@rules.check("check.raises")
def broken_check(state, event):
    return [][0]


@rules.check("check.exits")
def leaving_check(state, event):
    raise SystemExit(1)


@rules.reduce("reduce.raises")
def broken_reducer(state, event):
    state["count"] = -1
    raise KeyError("half done")


@rules.reduce("reduce.raises.later")
def fused(state, event):
    state["touched"] = True
    if state.get("count"):
        raise ValueError("there is a count already")


@rules.check("slow")
def slow_check(state, event):
    time.sleep(0.02)
"""

SCHEMAS = ("counted", "check.raises", "check.exits", "reduce.raises", "reduce.raises.later", "slow")


def write_model(place: Path, version: int, rules: str = RULES) -> Path:
    """Version N counts by N."""
    (place / "schemas").mkdir(parents=True, exist_ok=True)
    for schema in SCHEMAS:
        (place / "schemas" / f"{schema}.json").write_text("{}")
    (place / "rules.py").write_text(rules.format(version=version))
    (place / "model.toml").write_text(
        f'name = "counts"\nmodel_version = {version}\nrules = "rules.py"\nrule_budget_ms = 10\n'
    )
    return place


def counting_model(place: Path, version: int) -> Model:
    return load_model(write_model(place, version))
