"""Dashboard and alert rules name metrics and labels that a server has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.reference import metrics_page
from unisono.protocol.errors import CloseCode, WireError

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"

_METRIC = re.compile(r"\bunisono_[a-z_]+")
_SERIES = re.compile(r"(unisono_[a-z_]+?)(?:_bucket|_count|_sum)?$")


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8"))
    return loaded


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def expressions() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]
    yield from (rule["expr"] for rule in rules())


def known() -> set[str]:
    return set(re.findall(r"`(unisono_[a-z_]+)`", metrics_page()))


def test_every_metric_that_is_named_exists() -> None:
    assert "unisono_commit_seconds" in known()
    for expression in expressions():
        for name in _METRIC.findall(expression):
            series = _SERIES.match(name)
            assert series is not None
            assert name in known() or series[1] in known(), f"{name} in {expression}"


def test_labels_that_are_chosen_exist() -> None:
    codes = {str(int(code)) for code in CloseCode} | {error.code for error in WireError.__subclasses__()}
    for expression in expressions():
        for code in re.findall(r'code="([^"]+)"', expression):
            assert code in codes, expression
        for label in re.findall(r"by \(([^)]+)\)", expression):
            assert set(label.split(", ")) <= {"le", "instance", "reason", "code", "rule"}, expression


@pytest.mark.parametrize("pair", ["()", "{}", "[]"])
def test_expressions_are_balanced(pair: str) -> None:
    for expression in expressions():
        assert expression.count(pair[0]) == expression.count(pair[1]), expression


def test_every_panel_has_a_place_of_its_own_and_a_data_source() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + right, place["y"] + down)
            for right in range(place["w"])
            for down in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"
    assert max(right for right, _ in taken) == 23


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
