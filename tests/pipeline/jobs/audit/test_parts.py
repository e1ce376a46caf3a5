"""The parts of an audit that need no Spark: fingerprints, single events, ids that meet, trees, bounded findings."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.history import START_MS, make_record
from unisono.lake.columns import LOG_SCHEMA, to_batch
from unisono.lake.storage import Storage
from unisono.model.forest import Forest, ForestNode
from unisono.model.model import open_model
from unisono.model.partition import PartitionState
from unisono.pipeline.fold import replay
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.audit.balance import balance
from unisono.pipeline.jobs.audit.compare_copies import DifferingBlocks, StoreRange
from unisono.pipeline.jobs.audit.duplicate_ids import find_shared_ids, report_shared_ids, split
from unisono.pipeline.jobs.audit.event_checks import EventCheck, complete_rows
from unisono.pipeline.jobs.audit.findings import KEPT_MAX, FindingTally
from unisono.pipeline.jobs.audit.id_continuity import check_continuity
from unisono.pipeline.jobs.audit.page import _merge_places, page
from unisono.pipeline.jobs.audit.result import build_report
from unisono.pipeline.jobs.audit.tasks import AuditOutcome, CommitTime, FileContent, Scope
from unisono.pipeline.jobs.audit.tree_invariants import fault, stored_fault
from unisono.pipeline.row_fingerprints import EVENT_COLUMNS, Sums, batch_hashes, mix, record_hashes
from unisono.protocol.canonical import canonical, content_hash
from unisono.protocol.tombstones import tombstone
from unisono.store.port import Record


def records(count: int, seed: int = 1) -> list[Record]:
    chance = random.Random(seed)
    return [make_record(number, chance) for number in range(1, count + 1)]


def made(event: Any, names: list[str], committed_id: int = 7) -> Record:
    text = canonical(event)
    return Record(
        committed_id, "e", "c", tuple(names), text, content_hash(text, canonical(list(names))), START_MS
    )


def found(*some: Record, model: ShippedModel | None = None) -> list[tuple[str, int | None]]:
    tally = FindingTally(100)
    EventCheck(tally, None if model is None else model.load()).check(to_batch(some))
    return [(finding.kind, finding.committed_id) for finding in tally.kept()]


SET = {"type": "set", "payload": {"target": "a", "value": 1}}


def test_prints_of_log_and_lake_are_the_same() -> None:
    some = [*records(500), made(SET, ["with\0nul", "x"]), made(SET, ["a", "b"]), made(SET, ["a\0b"])]
    of_lake, of_log = batch_hashes(to_batch(some), EVENT_COLUMNS), record_hashes(some)
    assert of_lake.keys() == of_log.keys()
    for name, values in of_lake.items():
        assert (values == of_log[name]).all(), name
    assert of_lake["partitions"][-1] != of_lake["partitions"][-2]


@pytest.mark.parametrize("column", EVENT_COLUMNS)
def test_every_column_is_in_the_print(column: str) -> None:
    one = records(3)
    changed: Any = one[1].event + b" " if column == "event" else None
    changed = changed or {"partitions": ("other",), "status_updated_at": 5, "hash": b"y" * 32}.get(
        column, "other"
    )
    other = [one[0], _with(one[1], column, changed), one[2]]
    ids = np.array([record.committed_id for record in one], np.int64)
    assert (mix(ids, record_hashes(one)) == mix(ids, record_hashes(other))).tolist() == [True, False, True]


def _with(record: Record, column: str, value: Any) -> Record:
    fields = {name: getattr(record, name) for name in Record.__struct_fields__}
    return Record(**(fields | {column: value}))


@given(st.lists(st.integers(1, 20_000), min_size=1, max_size=50), st.integers(0, 49))
def test_sums_tell_the_block_that_differs(ids: list[int], place: int) -> None:
    whole, parts, other = Sums(20_000), Sums(20_000), Sums(20_000)
    values = np.array([hash((id, 5)) & 0xFFFFFFFF for id in ids], np.uint64)
    every = np.array(ids, np.int64)
    whole.add(every, values)
    for cut in (slice(0, 7), slice(7, None)):
        part = Sums(20_000)
        part.add(every[cut], values[cut])
        parts.merge(part)
    assert whole.differing(parts, 0, 20_000) == []
    wrong = place % len(ids)
    values[wrong] += np.uint64(1)
    other.add(every, values)
    ((low, high),) = whole.differing(other, 0, 20_000)
    assert low < ids[wrong] <= high


def test_ids_in_blocks() -> None:
    task = DifferingBlocks(((0, 10), (10, 20), (40, 50)), ())
    ids = np.array([1, 10, 11, 20, 21, 40, 41, 50, 51])
    assert task.within(ids).tolist() == [True, True, True, True, False, False, True, True, False]


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        (["a", "b"], []),
        (["with\0nul"], []),
        (["é"], []),
        (["e\u0301"], ["partitions", "hash"]),
        (["b", "a"], ["partitions", "hash"]),
        (["x" * 129], ["partitions"]),
        ([""], ["partitions"]),
        ([f"p{number:02d}" for number in range(65)], ["partitions"]),
    ],
)
def test_partitions_of_one_event(names: list[str], kinds: list[str]) -> None:
    """The hash is that of the normal form, which here only the stored form was hashed by."""
    assert [kind for kind, _ in found(made(SET, names))] == kinds


def test_a_tombstone_is_no_finding() -> None:
    erased = _with(made(SET, ["a"]), "event", tombstone(5))
    check = EventCheck(FindingTally(10))
    check.check(to_batch([erased]))
    assert check.tombstones == [7]
    assert found(erased) == []


def test_another_model_gives_warnings(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "counted.json").write_text('{"type": "array"}')
    (tmp_path / "model.toml").write_text('name = "m"\nmodel_version = 1\n')
    from unisono.model.load import load_model

    model = ShippedModel.of(load_model(tmp_path))
    told = found(*records(8), model=model)
    assert told == [("model", 4), ("model", 8)]
    assert found(*records(8), model=ShippedModel.open()) == []


def test_rows_without_a_value_are_told() -> None:
    rows = to_batch(records(3)).to_pylist()
    rows[1]["hash"] = None
    rows[2]["committed_id"] = None
    tally = FindingTally(3)
    left = complete_rows(pa.RecordBatch.from_pylist(rows, LOG_SCHEMA), tally)
    assert left.column("committed_id").to_pylist() == [1]
    assert [finding.text() for finding in tally.kept()] == [
        "column: committed_id has no value",
        "column: event 2: hash has no value",
    ]


def test_ids_meet_wherever_they_are() -> None:
    hashes = np.array([1, 2, 3, 1, 9, 2, 1], np.uint64)
    ids = np.array([10, 11, 12, 13, 14, 15, 16], np.int64)
    parts: dict[int, list[bytes]] = {}
    for cut in (slice(0, 3), slice(3, None)):
        for home, blob in split(hashes[cut], ids[cut], 3):
            parts.setdefault(home, []).append(blob)
    groups = sorted(group for blobs in parts.values() for group in find_shared_ids(blobs).groups)
    assert groups == [(10, 13, 16), (11, 15)]
    tally = FindingTally(20)
    # 11 and 15 only share a hash.
    report_shared_ids(groups, [(10, b"x"), (13, b"x"), (16, b"x"), (11, b"y"), (15, b"z")], tally)
    assert [finding.committed_id for finding in tally.kept()] == [13, 16]


def test_a_row_twice_is_not_an_id_twice() -> None:
    twice = np.array([5, 5], np.uint64), np.array([3, 3], np.int64)
    assert find_shared_ids(blob for _, blob in split(*twice, 1)).groups == []
    assert find_shared_ids([]).groups == []


def test_findings_are_counted_and_the_first_are_kept() -> None:
    one, other = FindingTally(10_000), FindingTally(10_000)
    for id in range(10_000, 5_000, -1):
        one.add("gap", "missing", id)
    for id in range(1, 501):
        other.add("gap", "missing", id)
    one.merge(other)
    assert one.counts == {"gap": 5_500}
    assert one.places["gap"].sum() == 5_500
    kept = [finding.committed_id for finding in one.kept()]
    assert kept == [*range(1, 501), *range(5_001, 5_501)]
    assert len(kept) == KEPT_MAX


@pytest.mark.parametrize("head", [1, 3, 7, 50, 51, 199, 200, 201, 1_000])
def test_findings_are_drawn_where_their_events_are(head: int) -> None:
    tally = FindingTally(head)
    for id in range(1, head + 1):
        tally.add("gap", "missing", id)
    drawn = _merge_places(tally.places["gap"].tolist(), head)
    assert drawn.sum() == head
    assert len(drawn) == min(head, 50)
    if head <= 50:
        assert drawn.tolist() == [1] * head


@pytest.mark.parametrize("wrong", [10**17, -5])
def test_a_page_of_events_whose_time_cannot_be(wrong: int) -> None:
    """It is a finding, and no point of the chart of growth."""
    scope = Scope(Storage.at("x"), 200, 200, 200, 4)
    outcome = AuditOutcome(scope)
    outcome.ticks = [CommitTime(n, START_MS + n) for n in range(1, 200)]
    right = page(build_report("x", scope, outcome, [], 1.0))
    assert "Events in all, from " in right
    outcome.ticks.append(CommitTime(200, wrong))
    assert page(build_report("x", scope, outcome, [], 1.0)) == right


def test_stretches_of_files_are_one_history() -> None:
    scope = Scope(Storage.at("x"), 100, 100, 100, 4)
    outcome = AuditOutcome(scope)
    outcome.extents = [
        FileContent("b", ((51, 60), (63, 90)), 50, 80),
        FileContent("a", ((1, 52),), 1, 60),
        FileContent("c", ((500, 501),), 90, 91),
    ]
    check_continuity(scope, outcome, [])
    told = [(finding.kind, finding.committed_id) for finding in outcome.tally.kept()]
    assert told == [
        ("head", None),
        ("gap", 61),
        ("gap", 91),
        ("duplicate", 51),
        ("duplicate", 52),
        ("order", 51),
    ]


def test_work_is_shared_out() -> None:
    parts = [StoreRange(start, start + 10 * (1 + start % 7)) for start in range(0, 1_000, 10)]
    slices = balance(parts, 2)
    assert len(slices) == 8
    assert sorted((part for some in slices for part in some), key=repr) == sorted(parts, key=repr)
    weights = [
        sum(part.upto - part.since for part in some if isinstance(part, StoreRange)) for some in slices
    ]
    assert max(weights) - min(weights) <= 70


def tree_state() -> PartitionState:
    state, model = PartitionState(), open_model()
    for id, parent in (("a", "_root"), ("b", "a"), ("c", "a"), ("d", "b")):
        event: Any = {
            "type": "treePush",
            "payload": {
                "target": "doc",
                "value": {"id": id},
                "options": {"parent": parent, "position": "last"},
            },
        }
        assert model.apply_committed(state, event)
    return state


def _forest(state: PartitionState) -> Forest:
    tree = state.tree.root["doc"]
    assert isinstance(tree, dict)
    forest = tree["tree"]
    assert isinstance(forest, Forest)
    return forest


@pytest.mark.req("TREE-10")
@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda nodes: setattr(nodes["d"], "first", "a"), "'a' is reached twice"),
        (lambda nodes: setattr(nodes["c"], "before", None), "'c' is not linked both ways"),
        (lambda nodes: setattr(nodes["d"], "parent", "c"), "'d' is not linked both ways"),
        (lambda nodes: setattr(nodes["b"], "first", None), "the last child of 'b'"),
        (lambda nodes: nodes.__setitem__("b", ForestNode("a", None, "c")), "'d' is reached from nowhere"),
        (lambda nodes: setattr(nodes["a"], "last", "b"), "the last child of 'a'"),
        (lambda nodes: nodes.pop("d"), "'d' is linked and not in the tree"),
    ],
)
def test_a_tree_that_is_not_well_formed(spoil: Any, told: str) -> None:
    state = tree_state()
    assert fault(state) is None
    spoil(_forest(state).nodes)
    problem = fault(state)
    assert problem is not None
    assert told in problem


def test_items_that_the_tree_does_not_name() -> None:
    state = tree_state()
    tree: Any = state.tree.root["doc"]
    tree["items"]["e"] = {}
    assert "there are 5 items, and the tree names 4" in str(fault(state))
    assert stored_fault(b'{"tree":{},"data":{}}') is None
    assert "cannot be loaded" in str(stored_fault(b"[]"))
    assert "cannot be loaded" in str(stored_fault(b'{"tree":{}}'))


def test_a_replay_stops_where_it_is_told() -> None:
    ids = list(range(1, 10))
    events = [canonical({"type": "set", "payload": {"target": "n", "value": id}}) for id in ids]
    content = (ids, events, [("c", None, id) for id in ids])
    history = [(b"p", content, 0, 4), (b"p", content, 4, 9)]
    seen = [
        (stop, state.dump()["tree"], count)
        for stop, state, count in replay(open_model(), history, [0, 3, 4, 8, 100])
    ]
    assert seen == [(0, {}, 0), (3, {"n": 3}, 3), (4, {"n": 4}, 4), (8, {"n": 8}, 8), (100, {"n": 9}, 9)]
