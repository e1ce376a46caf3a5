"""Dashboard and alert rules are PromQL that Prometheus reads, over series that a running server has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.behaviour.server.harness import running, set_event
from tests.docs.reference import metrics_page
from unisono.ipc.files import STATUS_FILE, PipelineStatus, StageStatus, write_pipeline_status
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


_VARIABLES = {"$__rate_interval": "5m", "$__interval": "1m", "$__range": "1h"}
"""What Grafana puts in place of its variables."""


def parsed(expression: str) -> Any:
    """The expression as a tree, read by the parser of PromQL; a function of variables is Grafana's, not PromQL."""
    for name, value in _VARIABLES.items():
        expression = expression.replace(name, value)
    variable = re.fullmatch(r"label_values\((.+), \w+\)", expression)
    return promql_parser.parse(variable[1] if variable else re.sub(r"\$\w+", "x", expression))


def selectors(node: Any) -> Iterator[Any]:
    """Every selector of series in an expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    elif isinstance(node, promql_parser.MatrixSelector):
        yield node.vector_selector
    elif isinstance(node, promql_parser.Call):
        for argument in node.args:
            yield from selectors(argument)
    elif isinstance(node, promql_parser.BinaryExpr):
        yield from selectors(node.lhs)
        yield from selectors(node.rhs)
    elif hasattr(node, "expr"):
        yield from selectors(node.expr)


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The series that a server with some traffic and a pipeline exports, each with its labels."""
    data = tmp_path_factory.mktemp("monitoring") / "data"
    with (
        running(data, "--access-default", "allow", "--model", "open") as server,
        server.client("c") as client,
    ):
        client.sync(["p"], subscription_partitions=["p"])
        assert client.commit(["p"], set_event("a", 1)) == 1
        now_ms = time.time_ns() // 1_000_000
        status = PipelineStatus("/lake", "data", "host", 1, now_ms, now_ms)
        status.stages = {"export": StageStatus(runs=1, last_done_ms=now_ms)}
        write_pipeline_status(data / STATUS_FILE, status)
        with urllib.request.urlopen(f"{server.admin}/metrics") as answer:
            text = answer.read().decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_a_server_exports_the_series_that_are_named(series: dict[str, set[str]]) -> None:
    seen = 0
    for expression in expressions():
        for selector in selectors(parsed(expression)):
            seen += 1
            if selector.name == "up":
                continue
            name, wanted = (
                selector.name,
                {each.name for each in selector.matchers.matchers} - {"instance", "job"},
            )
            if name not in series:
                reference = name.removesuffix("_total")
                assert name in known() or reference in known(), f"{name} in {expression}"
                assert name.endswith("_total"), f"a server has no {name}: {expression}"
                continue
            assert wanted <= series[name], f"{wanted} of {name} in {expression}"
    assert seen > 30


def test_promtool_reads_the_alerts() -> None:
    if shutil.which("promtool") is None:
        return  # the parser above stands alone; promtool adds its own opinion where it is installed
    outcome = subprocess.run(
        ["promtool", "check", "rules", MONITORING / "alerts.yaml"], capture_output=True, text=True
    )
    assert outcome.returncode == 0, outcome.stderr


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
