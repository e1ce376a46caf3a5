"""Re-validation, against a server's judgement of everything in one line: events in order, all partitions at once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from pyspark.sql import SparkSession

from tests.commands import unisono
from tests.lake.lakes import HERE
from tests.pipeline.history import make_store
from tests.pipeline.html.test_charts import read_page
from tests.pipeline.jobs.report.by_hand import store_of
from tests.pipeline.jobs.revalidate.models import (
    Edit,
    failing_reducer,
    in_one_line,
    lake_of,
    make_history,
    model_at,
    new_rule,
    no_checks,
    other_reducer,
    record,
    removed,
    require_exact,
    tightened,
)
from unisono.lake.lake import Lake
from unisono.model.load import load_model
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.compact.job import compact
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.revalidate.compare_states import changes
from unisono.pipeline.jobs.revalidate.job import revalidate, write
from unisono.pipeline.jobs.revalidate.page import SAME_VERSION, text
from unisono.pipeline.jobs.revalidate.result import EventKind
from unisono.protocol.tombstones import is_tombstone
from unisono.store.port import Record


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return make_history(1_200)


@pytest.fixture(scope="module")
def lake(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return lake_of(tmp_path_factory.mktemp("judged"), records)


MODELS: dict[str, tuple[Edit, ...]] = {
    "tightened": (tightened,),
    "removed": (removed,),
    "other reducer": (other_reducer,),
    "new rule": (new_rule,),
    "failing reducer": (failing_reducer,),
    "no checks": (no_checks,),
    "everything": (tightened, removed, other_reducer, new_rule, failing_reducer),
}


ALSO_IN_EVERYTHING = ("removed", "new rule", "no checks")
"""`make soak` has them alone; the suite has the first two within "everything"."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.soak] if name in ALSO_IN_EVERYTHING else []) for name in MODELS],
)
def test_counts_are_those_of_a_server(
    name: str, spark: SparkSession, lake: Lake, records: list[Record], tmp_path: Path
) -> None:
    old = load_model(model_at(tmp_path / "old", 1))
    new = load_model(model_at(tmp_path / "new", 2, *MODELS[name]))
    out = tmp_path / "out"
    result = revalidate(spark, lake, ShippedModel.of(old), ShippedModel.of(new), out=out)
    before, now = in_one_line(old, records), in_one_line(new, records)
    require_exact(result, records, before, now, out)
    assert not result.compatible
    assert result.rounds > 1, "some partitions must learn what others refuse"
    if name == "other reducer":
        assert result.differing
        assert not result.total.newly_rejected
        assert any(change.path == "data.title" for each in result.differences for change in each.changes)
    if name in ("tightened", "removed"):
        assert {each.reason.stage for each in result.reasons} >= {"shape"}
        assert result.total.newly_rejected
    if name == "removed":
        assert result.total.newly_skipped == 0, (
            "replay passes over an event without a reducer, it does not skip it"
        )
    if name == "failing reducer":
        assert "rule" in {each.reason.stage for each in result.reasons}
        assert result.total.newly_skipped
        assert result.skipped
    write(result, out)
    html = (out / "index.html").read_text()
    assert result.verdict[1:] in "".join(read_page(html).text)
    assert "script" not in read_page(html).tags
    assert json.loads((out / "result.json").read_text())["compatible"] is False


def test_the_same_model_is_compatible(
    spark: SparkSession, lake: Lake, records: list[Record], tmp_path: Path
) -> None:
    model = load_model(model_at(tmp_path / "old", 1))
    same = ShippedModel.of(model)
    out = tmp_path / "out"
    result = revalidate(spark, lake, same, same, out=out)
    told = in_one_line(model, records)
    require_exact(result, records, told, told, out)
    assert result.compatible
    assert result.verdict.startswith("compatible: ")
    assert (result.reasons, result.skipped, result.differences) == ([], [], [])
    assert not list(out.rglob(".*"))


@pytest.mark.soak
def test_how_the_work_is_cut_changes_nothing(
    spark: SparkSession, lake: Lake, records: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = ShippedModel.of(load_model(model_at(tmp_path / "old", 1)))
    new = ShippedModel.of(load_model(model_at(tmp_path / "new", 2, *MODELS["everything"])))
    first = revalidate(spark, lake, old, new)
    other = Lake.at(str(tmp_path / "lake"))
    other.make(4)
    store = store_of(tmp_path / "data", records)
    export(HERE, store, other, events_per_file=150)
    compact(spark, other, 100_000)
    monkeypatch.setattr("unisono.pipeline.task_planning.TASK_EVENTS_MIN", 10_000)
    assert msgspec.structs.replace(revalidate(spark, other, old, new), rounds=first.rounds) == first


def test_partitions_that_hang_on_each_other(spark: SparkSession, tmp_path: Path) -> None:
    """Each refusal decides the next one, in another partition: they come to light one after the other."""

    def added(note: str) -> dict[str, Any]:
        return {"type": "event", "payload": {"schema": "note.added", "data": {"id": note, "text": "x"}}}

    chain = 7
    made = [record(1, ["p00"], added("n")), record(2, ["p00", "p01"], added("n"))]
    for number in range(1, chain):  # taken when the one before was refused, and the other way round
        made.append(record(number + 2, [f"p{number:02d}", f"p{number + 1:02d}"], added("n")))
    lake = lake_of(tmp_path, made)
    loose = load_model(model_at(tmp_path / "loose", 1, no_checks))
    strict = load_model(model_at(tmp_path / "strict", 2))
    result = revalidate(spark, lake, ShippedModel.of(loose), ShippedModel.of(strict), out=tmp_path / "out")
    before, now = in_one_line(loose, made), in_one_line(strict, made)
    assert now.rejected == {2, 4, 6, 8}
    require_exact(result, made, before, now, tmp_path / "out")
    assert result.rounds > 3
    (reason,) = result.reasons
    assert (reason.kind, reason.events, reason.reason.stage) == (EventKind("event", "note.added"), 4, "state")
    assert reason.reason.message == "there is already a note of this id"


def test_when_it_cannot_be_settled_it_says_so(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ShippedModel.of(load_model(model_at(tmp_path / "old", 1)))
    for name in ("REFUSED_MAX", "ROUNDS_MAX"):
        with monkeypatch.context() as patched:
            patched.setattr(f"unisono.pipeline.jobs.revalidate.job.{name}", 1)
            result = revalidate(spark, lake, model, model)
            assert not result.settled
            assert not result.compatible
            assert result.verdict.startswith("not known to be compatible")
            assert "approximate" in text(result)


def test_rows_that_the_driver_does_not_see(tmp_path: Path) -> None:
    """As of executors on other machines; of states that differ too, where every event is taken as before."""
    renamed = {"type": "event", "payload": {"schema": "outline.renamed", "data": {"title": "t"}}}
    lake, out = lake_of(tmp_path, [record(1, ["room"], renamed)]), tmp_path / "out"
    old, new = (
        ShippedModel.of(load_model(model_at(tmp_path / f"model-{version}", version, *edits)))
        for version, edits in ((1, ()), (2, (other_reducer,)))
    )
    with pytest.raises(PipelineError, match=r"executors wrote to .*out, and the driver"):
        revalidate(HERE, lake, old, new, out=out, notify=lambda _: shutil.rmtree(out / "partitions"))


def test_an_empty_lake(spark: SparkSession, tmp_path: Path) -> None:
    empty = Lake.at(str(tmp_path / "lake"))
    empty.make(4)
    model = ShippedModel.of(load_model(model_at(tmp_path / "m", 1)))
    result = revalidate(spark, empty, model, ShippedModel.open())
    assert (result.compatible, result.events, result.rounds) == (True, 0, 0)
    assert "not judged" not in text(result)
    (tmp_path / "a file").touch()
    with pytest.raises(PipelineError, match="cannot write the result to"):
        revalidate(spark, empty, model, ShippedModel.open(), out=tmp_path / "a file")
    behind = revalidate(spark, empty, model, ShippedModel.open(), log_head=7)
    assert "The log has 7 events after these that are not in the lake and were not judged" in text(behind)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": True}, [("a", "1", "true")]),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3, 4]}}, [("a.b.1", "2", "3"), ("a.b.2", None, "4")]),
        ({"a": {"x": 1}}, {"a": None}, [("a", '{"x":1}', "null")]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, [("", "the same keys", "in another order")]),
        ({"a": "x" * 500}, {}, [("a", '"' + "x" * 119 + "…", None)]),
    ],
)
def test_where_states_differ(before: Any, now: Any, expected: list[Any]) -> None:
    assert [(change.path, change.before, change.now) for change in changes(before, now)] == expected


def test_deep_states_are_compared(tmp_path: Path) -> None:
    left: Any = 1
    right: Any = 2
    for _ in range(50_000):
        left, right = {"a": left}, {"a": right}
    (change,) = changes(left, right)
    assert (change.before, change.now) == ("1", "2")
    assert changes({"b": left}, {})[0].before == "(a deep value)"


@pytest.mark.timeout(240)
def test_from_the_command_line(spark: SparkSession, tmp_path: Path) -> None:
    records = [each for each in make_history(120) if not is_tombstone(each.event)]
    records = [
        record(number, each.partitions, orjson.loads(each.event)) for number, each in enumerate(records, 1)
    ]
    lake_of(tmp_path, records)
    old, new = model_at(tmp_path / "old", 1), model_at(tmp_path / "new", 1, tightened, other_reducer)
    place = ["--lake", str(tmp_path / "lake"), "--master", "local[2]"]
    refused = unisono(
        "lake",
        "revalidate",
        *place,
        "--model",
        str(new),
        "--against",
        str(old),
        "--out",
        str(tmp_path / "out"),
    )
    assert refused.exit_code == 1, refused.stderr
    assert refused.stdout.splitlines()[-1].startswith("not compatible: ")
    assert SAME_VERSION in refused.stdout
    assert "judged about " in refused.stderr
    assert (tmp_path / "out" / "index.html").exists()
    fine = unisono(
        "lake", "revalidate", *place, "--model", str(old), "--against", str(old), "--json", "--quiet"
    )
    assert (fine.exit_code, fine.stderr) == (0, "")
    assert json.loads(fine.stdout)["compatible"] is True
    unknown = unisono("lake", "revalidate", *place, "--model", str(new))
    assert unknown.exit_code == 2
    assert "say what to compare with" in unknown.stderr
    nowhere = unisono("lake", "revalidate", *place, "--model", str(tmp_path / "nowhere"), "--against", "open")
    assert nowhere.exit_code == 2
    assert "is not a directory" in nowhere.stderr
    make_store(tmp_path / "log", 3)
    strange = unisono(
        "lake",
        "revalidate",
        *place,
        "--model",
        str(new),
        "--against",
        str(old),
        "--data",
        str(tmp_path / "log"),
    )
    assert strange.exit_code == 2
    assert "it is a copy of another log" in strange.stderr
