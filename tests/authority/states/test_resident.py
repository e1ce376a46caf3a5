"""States as a group changes them: staged, rolled back exactly, all partitions of an event or none."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.authority.history import History
from tests.authority.logs import FailingLog
from tests.authority.seat import candidate, note, push, put, reading, results_of, seated, seated_on
from tests.authority.states.random_history import check
from unisono.authority.judge import Commit, Verdict, judge
from unisono.authority.states.resident import States
from unisono.ipc.messages import BatchOutcome, Candidate, LogFailed, Message
from unisono.model.load import load_model
from unisono.model.model import CANONICAL, COMPATIBILITY, Model, open_model
from unisono.samples import sample_model
from unisono.store.port import Record, RememberedId
from unisono.store.sqlite.log import SqliteLog

SAMPLE = load_model(sample_model())
PARTITIONS = ("p", "q", "r")
EMPTY_HALF_BYTES = 500

Group = Sequence[Candidate]


class Bench:
    """States on a real log, given groups by hand: each is committed or fails."""

    def __init__(self, data: Path, model: Model = SAMPLE, bytes_max: int = 1 << 20) -> None:
        self.log = SqliteLog.open(data)
        self.model = model
        self.bytes_max = bytes_max
        self.states = self.fresh()

    def fresh(self) -> States:
        """States that have loaded nothing yet."""
        return States(self.model, self.log, bytes_max=self.bytes_max, snapshot_every=0, now_ms=lambda: 0)

    def judge(self, group: Group) -> list[Verdict]:
        """Open a group and judge its items; it stays open."""
        self.states.reset_fold_budget()
        for item in group:
            if self.states.stateful(profile(item)):
                assert self.states.ready(item.partitions)
        known: dict[str, RememberedId | Record] = {**self.log.begin([item.id for item in group]).known}
        return [judge(item, profile(item), known, self.states.stage) for item in group]

    def commit(self, group: Group) -> list[Verdict]:
        verdicts = self.judge(group)
        head = self.log.head()
        accepted = [item for item, verdict in zip(group, verdicts, strict=True) if verdict == Commit()]
        self.log.commit(
            [
                Record(n, item.id, "client", item.partitions, item.event, item.hash, 0)
                for n, item in enumerate(accepted, head + 1)
            ]
        )
        self.states.settle()
        return verdicts

    def fail(self, group: Group) -> list[Verdict]:
        verdicts = self.judge(group)
        self.log.abandon()
        self.states.rollback()
        return verdicts

    def dumps(self, states: States | None = None) -> Mapping[str, str]:
        """All states as text, the order of keys included; `weight` is checked on the way."""
        states = states or self.states
        states.reset_fold_budget()
        assert states.ready(PARTITIONS)
        residents = states._resident
        assert states._weight == sum(resident.weight for resident in residents.values())
        drift = [resident.state.weight() - resident.weight for resident in residents.values()]
        assert all(0 <= more < EMPTY_HALF_BYTES for more in drift), "a refusal may have made an empty half"
        return {name: json.dumps(residents[name].state.dump()) for name in PARTITIONS}


def profile(item: Candidate) -> str:
    return CANONICAL if json.loads(item.event)["type"] == "event" else COMPATIBILITY


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "data")
    yield made
    made.log.close()


ids = st.sampled_from(["a", "b", "c", "__proto__"])
events: st.SearchStrategy[Any] = st.one_of(
    st.builds(lambda id, text: note("note.added", id=id, text=text), ids, st.text("xy", max_size=2)),
    st.builds(lambda id: note("note.edited", id=id, text="edited"), ids),
    st.builds(lambda id: note("note.removed", id=id), ids),
    st.builds(lambda text: note("outline.renamed", title=text), st.text("xy", min_size=1, max_size=2)),
    st.builds(lambda id, parent: push(id, "explorer", parent=parent), ids, ids | st.just("_root")),
    st.builds(
        lambda id, parent: {
            "type": "treeMove",
            "payload": {"target": "explorer", "options": {"id": id, "parent": parent}},
        },
        ids,
        ids | st.just("_root"),
    ),
    st.builds(
        lambda id: {"type": "treeDelete", "payload": {"target": "explorer", "options": {"id": id}}}, ids
    ),
    st.builds(lambda value: put("settings.x", value), st.integers(0, 3)),
    st.just({"type": "unset", "payload": {"target": "settings"}}),
    st.just({"type": "init", "payload": {"value": {"settings": {"y": 1}}}}),
)
places = st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=3, unique=True)
groups = st.lists(st.tuples(places, events), min_size=1, max_size=6)


@pytest.mark.req("DUR-04", "VAL-03", "VAL-05", "TREE-09")
@settings(max_examples=40)
@given(st.lists(st.tuples(groups, st.booleans()), max_size=8), st.sampled_from([1, 1 << 20]))
def test_a_failed_group_is_as_if_it_had_never_been(
    history: list[tuple[list[tuple[list[str], Any]], bool]], bytes_max: int
) -> None:
    """With a small `bytes_max` all but one state is thrown away after each group."""
    with TemporaryDirectory(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")) as place:
        one, other = Bench(Path(place) / "one", bytes_max=bytes_max), Bench(Path(place) / "other")
        try:
            for made, fails in history:
                group = [candidate(partitions, event) for partitions, event in made]
                if fails:
                    before = one.dumps()
                    verdicts = one.fail(group)
                    assert one.dumps() == before
                    assert one.fail(group) == verdicts, "judged again it is judged the same"
                    assert one.dumps() == before
                else:
                    assert one.commit(group) == other.commit(group)
            assert one.dumps() == other.dumps() == one.dumps(one.fresh()), "the log alone says the same"
        finally:
            one.log.close()
            other.log.close()


@pytest.mark.req("TREE-09")
def test_an_event_refused_in_one_partition_changes_none(bench: Bench) -> None:
    bench.commit([candidate(["q"], push("a")), candidate(["q"], note("note.added", id="n", text=""))])
    before = bench.dumps()
    for event in (push("a"), note("note.added", id="n", text="")):
        for partitions in (["p", "q"], ["q", "r"], ["p", "q", "r"]):
            (verdict,) = bench.commit([candidate(partitions, event)])
            assert verdict != Commit()
    assert bench.dumps() == before
    valid = [candidate(["p", "r"], push("a")), candidate(["p", "r"], note("note.added", id="n", text=""))]
    assert bench.commit(valid) == [Commit(), Commit()]
    after = bench.dumps()
    assert after["p"] == after["q"] == after["r"]


@pytest.mark.req("SUBMIT-02", "VAL-03")
def test_rules_see_what_the_items_before_left(bench: Bench) -> None:
    added, removed = note("note.added", id="n", text=""), note("note.removed", id="n")
    made = [removed, added, added, removed, added]
    verdicts = bench.commit([candidate(["p"], event) for event in made])
    assert [verdict == Commit() for verdict in verdicts] == [False, True, False, True, True]


@pytest.mark.req("TREE-11", "DUR-07")
def test_what_other_nodes_did_is_followed_once(bench: Bench) -> None:
    """A state may be loaded from a snapshot that is newer than what this node has heard of."""
    bench.commit([candidate(["p"], note("note.added", id="n", text=""))])
    bench.commit([candidate(["p"], push("a")), candidate(["p", "q"], push("b"))])
    while bench.states.write_snapshot("p") is None:
        pass
    elsewhere = bench.fresh()
    assert elsewhere.load("p")
    assert elsewhere.load("q")
    elsewhere.follow(bench.log.scan(1, 3, limit=2))
    bench.commit([candidate(["q"], push("c")), candidate(["p", "r"], push("d"))])
    elsewhere.follow(bench.log.scan(2, 5, limit=3))
    for name in "pq":
        followed, judged = elsewhere._resident[name].state, bench.states._resident[name].state
        assert (followed.dump(), followed.skipped) == (judged.dump(), 0)


def test_a_profile_without_rules_needs_no_states(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data", open_model())
    assert bench.commit([candidate(["p"], note("anything", n=n)) for n in range(3)]) == [Commit()] * 3
    assert not bench.states._resident
    bench.log.close()


@pytest.mark.req("DUR-04", "DUR-03", "VAL-05")
def test_when_the_log_fails_under_way_the_next_start_judges_without_that_group(tmp_path: Path) -> None:
    data, history = tmp_path / "data", History(5)
    for commits in (3, 1, 7, 0, 12):
        log = FailingLog.open(data)
        log.commits_left = commits
        with seated_on(log, fails=True) as seat:
            caller = seat.front.connect()
            while True:
                kept = history.keep()
                batch = history.next(60)
                caller.send(*(verdict.item for verdict in batch))
                answer: Message = seat.front.wait(
                    lambda message: isinstance(message, BatchOutcome | LogFailed)
                )
                if not isinstance(answer, BatchOutcome):
                    history.restore(kept)
                    break
                for verdict, result in zip(batch, results_of(answer), strict=True):
                    verdict.check(result)
    with seated(data) as seat:
        check(seat, data, history)
        assert seat.front.head() == history.accepted
    with reading(data) as reader:
        assert reader.head() == history.accepted
