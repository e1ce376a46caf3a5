"""Events in several partitions: rounds of partitions come to what one pass over everything comes to."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.pipeline.history import read_store
from unisono.model.authorship import UNKNOWN
from unisono.model.model import Model, open_model
from unisono.model.rules import Event, FieldError, Rules, refuse
from unisono.model.schema import SchemaProfile
from unisono.model.tree import TreeProfile
from unisono.pipeline.jobs.import_ import rounds
from unisono.pipeline.jobs.import_.job import ImportPlan, run
from unisono.pipeline.jobs.import_.judge import Judge, LocalVerdict
from unisono.pipeline.jobs.import_.read_split import number_of
from unisono.pipeline.jobs.import_.result import ImportReport, JudgingSummary
from unisono.pipeline.jobs.import_.sources import find
from unisono.pipeline.open_log import sqlite_uri
from unisono.protocol.partitions import normalise

PLACES = ("p", "q", "r", "s", "t")


def action(kind: str, item: str) -> dict[str, Any]:
    if kind == "treePush":
        return {"type": kind, "payload": {"target": "t", "value": {"id": item}}}
    return {"type": kind, "payload": {"target": "t", "options": {"id": item}}}


Shared = tuple[dict[str, Any], tuple[str, ...]]


def whole(model: Model, history: list[Shared]) -> list[Any]:
    judge = Judge(model, None, 0)
    return [judge.judge(msgspec.json.encode(event), names) for event, names in history]


def in_rounds(model: Model, history: list[Shared]) -> tuple[list[Any], int]:
    """The rounds without Spark: every partition by itself, again while what others say differs."""
    known: dict[str, dict[int, LocalVerdict]] = {}
    local: dict[str, dict[int, LocalVerdict]] = {}
    changed, count = set(PLACES), 0
    while changed:
        count += 1
        for name in changed:
            judge, own = Judge(model, None, 0), local.setdefault(name, {})
            own.clear()
            for place, (event, names) in enumerate(history):
                if name in names:
                    verdict = judge.judge_in(
                        msgspec.json.encode(event), name, names.index(name), UNKNOWN,
                        refused_elsewhere=place in known.get(name, {}),
                    )  # fmt: skip
                    if verdict is not None:
                        own[place] = verdict
        inboxes: dict[str, dict[int, LocalVerdict]] = {}
        for name, own in local.items():
            for place, verdict in own.items():
                for other in set(history[place][1]) - {name}:
                    inbox = inboxes.setdefault(other, {})
                    inbox[place] = min(inbox.get(place, verdict), verdict)
        changed = {name for name in PLACES if known.get(name, {}) != inboxes.get(name, {})}
        known = inboxes
    against = [[own[place] for own in local.values() if place in own] for place in range(len(history))]
    return [min(some, default=None) for some in against], count


events = st.tuples(st.sampled_from(["treePush", "treePush", "treeDelete"]), st.sampled_from("abc"))
shared = st.lists(
    st.tuples(
        events.map(lambda made: action(*made)),
        st.sets(st.sampled_from(PLACES), min_size=1, max_size=3).map(lambda names: normalise(list(names))),
    ),
    max_size=30,
)


@given(shared)
@settings(max_examples=300)
def test_rounds_come_to_what_one_pass_comes_to(history: list[Shared]) -> None:
    expected = [error and (error.field, error.message) for error in whole(open_model(), history)]
    verdicts, _ = in_rounds(open_model(), history)
    assert [verdict and (verdict.field, verdict.message) for verdict in verdicts] == expected


def ruled_model() -> Model:
    """`mark` sets a flag of the partition; `use` is refused at `closed`, and its reducer fails at `broken`."""
    rules = Rules()

    @rules.reduce("mark")
    def mark(state: dict[str, Any], event: Event) -> None:
        state[event.data] = True

    @rules.check("use")
    def open_only(state: dict[str, Any], event: Event) -> list[FieldError]:
        return [refuse("", f"closed for {event.data}")] if "closed" in state else []

    @rules.reduce("use")
    def use(state: dict[str, Any], event: Event) -> None:
        state["used"] = event.data
        if "broken" in state:
            raise ValueError

    return Model("ruled", 1, SchemaProfile(None, rules), TreeProfile())


def canonical_event(schema: str, data: str) -> dict[str, Any]:
    return {"type": "event", "payload": {"schema": schema, "data": data}}


@given(
    st.lists(
        st.tuples(
            st.one_of(
                st.sampled_from(["closed", "broken"]).map(lambda flag: canonical_event("mark", flag)),
                st.sampled_from("xyz").map(lambda data: canonical_event("use", data)),
            ),
            st.sets(st.sampled_from(PLACES), min_size=1, max_size=3).map(
                lambda names: normalise(list(names))
            ),
        ),
        max_size=15,
    )
)
def test_a_rule_that_fails_counts_after_all_refusals(history: list[Shared]) -> None:
    """Of a partition that refuses and one whose reducer fails, the refusal is reported, whatever their order."""
    expected = [error and (error.field, error.message) for error in whole(ruled_model(), history)]
    verdicts, _ = in_rounds(ruled_model(), history)
    assert [verdict and (verdict.field, verdict.message) for verdict in verdicts] == expected


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """600 events, of which some are refused in one of their partitions: later ones depend on that."""
    chance = random.Random(4)
    file = tmp_path / "old.jsonl"
    with file.open("wb") as lines:
        for number in range(600):
            kind = "treeDelete" if number % 10 == 0 else "treePush"
            names = chance.sample([f"room-{n}" for n in range(30)], chance.choice([1, 1, 1, 2, 3]))
            row = {
                "id": f"e{number}",
                "partitions": names,
                "event": action(kind, f"i{chance.randrange(150)}"),
                "committed_id": number + 1,
            }
            lines.write(msgspec.json.encode(row) + b"\n")
    return file


def imported(spark: SparkSession, file: Path, place: Path) -> tuple[ImportReport, list[Any], list[Any]]:
    place.mkdir()
    plan = ImportPlan(
        sqlite_uri(place / "data"), tuple(find((file,), None)), place / "staging", str(place / "rejects")
    )
    report = run(plan, lambda: spark, lambda _text: None)
    rejected = DeltaTable(str(place / "rejects")).to_pyarrow_table().drop_columns("import_id").to_pylist()
    return report, read_store(place / "data"), sorted(rejected, key=lambda row: row["line"])


def _untimed(records: list[Any]) -> list[Any]:
    return [msgspec.structs.replace(record, status_updated_at=0) for record in records]


def test_rounds_and_components_import_the_same_log(
    spark: SparkSession, history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unisono.pipeline.jobs.import_.decide.TASK_ROWS_MIN", 100)  # several tasks
    report, records, rejected = imported(spark, history, tmp_path / "a")
    assert report.prepared.judged is not None
    assert report.prepared.judged.rounds > 2, "events depend on others that were refused elsewhere"
    assert f"in {report.prepared.judged.rounds} rounds in all" in report.text()
    monkeypatch.setattr(rounds, "ONE_TASK_ROWS", 0)
    by_jobs, *theirs = imported(spark, history, tmp_path / "by jobs")
    assert by_jobs.prepared.judged == report.prepared.judged, (
        "whether one task judges all rounds, or many each"
    )
    assert _untimed(theirs[0]) == _untimed(records)
    assert theirs[1] == rejected
    monkeypatch.setattr(rounds, "ROUNDS_MAX", 1)
    other, same, rejected_too = imported(spark, history, tmp_path / "b")
    assert other.prepared.judged == JudgingSummary(components=1)
    assert "judged by one task" in other.text()
    assert _untimed(same) == _untimed(records)
    assert rejected_too == rejected
    assert other.prepared.reasons == report.prepared.reasons
    assert {row["reason"] for row in rejected} == {"refused"}


def test_too_many_refusals_for_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "REFUSALS_MAX", 2)
    verdict = LocalVerdict(0, "event", "no")
    some = [rounds.SharedRefusal(number_of("p"), (0, row), verdict, (number_of("q"),)) for row in range(3)]
    with pytest.raises(rounds.Unsettled):
        rounds._add({}, some)
    held: dict[int, list[rounds.SharedRefusal]] = {}
    rounds._add(held, some[:2])
    assert len(held[number_of("p")]) == 2


def test_all_rounds_in_one_task_may_run_twice(
    spark: SparkSession, history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of which Spark lost the result leaves the decided rows as they were."""
    settlings: list[rounds.Settling] = []

    def lost(_spark: SparkSession, tasks: list[rounds.Settling], function: Any) -> list[Any]:
        settlings.extend(tasks)
        before = {path.name: path.read_bytes() for path in Path(tasks[0].folder).iterdir()}
        first = function(tasks[0])
        assert {path.name: path.read_bytes() for path in Path(tasks[0].folder).iterdir()} == before
        again = function(tasks[0])
        assert first[0] != again[0]
        assert first[1] == again[1]
        return [again]

    expected, records, rejected = imported(spark, history, tmp_path / "once")
    monkeypatch.setattr(rounds, "run_on_executors", lost)
    report, same, rejected_too = imported(spark, history, tmp_path / "twice")
    assert len(settlings) == 1
    assert report.prepared.judged == expected.prepared.judged
    assert _untimed(same) == _untimed(records)
    assert rejected_too == rejected
