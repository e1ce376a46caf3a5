"""Import: every row accounted for, judged as the server would, in order, once."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.pipeline.history import append, make_store, read_store
from tests.pipeline.legacy import Legacy, Planted, write_lines
from tests.store.postgres.server import database, postgres  # noqa: F401 (fixtures)
from unisono.model.load import load_model
from unisono.pipeline.errors import NoSuchStore, PipelineError
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.import_.job import ImportPlan, run
from unisono.pipeline.jobs.import_.result import ImportReport, JudgingSummary
from unisono.pipeline.jobs.import_.sources import find
from unisono.pipeline.jobs.import_.staging import Staging
from unisono.pipeline.open_log import open_reader, sqlite_uri
from unisono.protocol.canonical import canonical, content_hash
from unisono.samples import sample_model
from unisono.store.bulk_load import Loader
from unisono.store.check import check_directory
from unisono.store.port import Record
from unisono.store.postgres.log import PostgresLog
from unisono.store.sqlite.log import SqliteLog

Importing = Callable[..., ImportReport]


@pytest.fixture
def importing(spark: SparkSession, tmp_path: Path) -> Importing:
    """Runs an import on the shared Spark; keywords change the plan."""

    def do(*paths: Path, store: str = "", format: str | None = None, **changes: Any) -> ImportReport:
        plan = ImportPlan(
            store or sqlite_uri(tmp_path / "data"),
            tuple(find(paths, format)),
            tmp_path / "staging",
            changes.pop("rejects", str(tmp_path / "rejects")),
            **changes,
        )
        return run(plan, lambda: spark, lambda _text: None)

    return do


def rejected(tmp_path: Path, name: str = "rejects") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(str(tmp_path / name)).to_pyarrow_table().to_pylist()
    return rows


def require_planted(report: ImportReport, planted: Planted) -> None:
    prepared = report.prepared
    assert prepared.totals.rows == planted.rows
    assert prepared.totals.accepted == planted.accepted
    assert prepared.totals.duplicate == planted.duplicate
    assert prepared.totals.known == 0
    assert prepared.reasons == dict(planted.reasons)
    assert prepared.migrated == planted.migrated


def write(path: Path, *rows: Any) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return path


def put(id: str, target: str = "a", value: Any = 1, **more: Any) -> dict[str, Any]:
    payload = {"target": target, "value": value, "options": {"replace": True}}
    return {"id": id, "partitions": ["p"], "event": {"type": "set", "payload": payload}, **more}


def push(id: str, item: str, partitions: list[str], **more: Any) -> dict[str, Any]:
    event = {"type": "treePush", "payload": {"target": "t", "value": {"id": item}}}
    return {"id": id, "partitions": partitions, "event": event, **more}


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.req("AUTH-10", "VAL-06")
def test_authors_are_imported_and_known_to_rules(importing: Importing, tmp_path: Path) -> None:
    def line(place: str, user: str | None, schema: str, **data: Any) -> dict[str, Any]:
        event = {"type": "event", "payload": {"schema": schema, "data": data}}
        return {"id": place, "partitions": ["p"], "event": event, "client_id": "c", "user_id": user}

    file = write(
        tmp_path / "board.jsonl",
        line("1", "ann", "member.set", user_id="ann", role="owner"),
        line("2", "ben", "card.added", id="c1", list="todo", text="milk"),
        line("3", None, "card.added", id="c2", list="todo", text="milk"),
        line("4", "ann", "card.added", id="c3", list="todo", text="milk") | {"claims": {"name": "Ann"}},
    )
    report = importing(file, model=ShippedModel.of(load_model(sample_model("roles"))))
    assert report.prepared.reasons == {"refused": 2}
    assert [(record.id, record.author) for record in read_store(tmp_path / "data")] == [
        ("1", '{"user_id":"ann"}'), ("4", '{"claims":{"name":"Ann"},"user_id":"ann"}'),
    ]  # fmt: skip


@pytest.mark.req("PART-02", "PART-05", "ORD-03", "ORD-04")
def test_every_row_is_accounted_for(importing: Importing, tmp_path: Path) -> None:
    legacy = Legacy(3_000, seed=7)
    lines = list(legacy.lines())
    planted = legacy.planted
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a.jsonl").write_bytes(b"\n".join(lines[:1_300]) + b"\n\n")
    (tmp_path / "old" / "b.jsonl.gz").write_bytes(gzip.compress(b"\n".join(lines[1_300:])))
    dry = importing(tmp_path / "old", dry_run=True, split_bytes=150_000)
    require_planted(dry, planted)
    assert dry.loaded is None
    assert not (tmp_path / "data").exists(), "a dry run makes nothing"
    report = importing(tmp_path / "old", split_bytes=150_000)
    require_planted(report, planted)
    assert report.loaded is not None
    assert (report.loaded.committed, report.loaded.head) == (planted.accepted, planted.accepted)
    records = read_store(tmp_path / "data")
    assert [record.id for record in records] == planted.ids
    for record in records:
        assert record.hash == content_hash(record.event, canonical(list(record.partitions)))
    assert check_directory(tmp_path / "data").findings == ()
    rows = rejected(tmp_path)
    assert len(rows) == planted.reasons.total()
    # Named lines are those of the files.
    for row in rows:
        number = row["line"] - 1 + (1_300 if row["file"].endswith("gz") else 0)
        if row["reason"] not in ("conflict", "refused"):
            assert row["content"] == lines[number].decode("utf-8", "replace")
    assert [file.rows for file in report.prepared.files] == [1_300, 1_700]
    assert list((tmp_path / "staging").iterdir()) == [tmp_path / "staging" / "lock"]
    again = importing(tmp_path / "old", split_bytes=250_000)
    assert again.prepared.totals.known == planted.accepted
    assert again.loaded is not None
    assert again.loaded.committed == 0
    assert read_store(tmp_path / "data") == records


def test_judged_in_one_order_over_several_files(importing: Importing, tmp_path: Path) -> None:
    """An event in two partitions needs both states; the order goes across files, by committed_id."""
    write(
        tmp_path / "a.jsonl",
        push("e1", "x", ["p"], committed_id=10),
        push("e3", "x", ["p", "q"], committed_id=30),  # x is in p already
        push("e5", "z", ["q"], committed_id=50),  # q has z since 40
        push("e6", "w", ["r"], committed_id=60),
    )
    write(
        tmp_path / "b.jsonl",
        push("e2", "y", ["p"], committed_id=20),
        push("e4", "z", ["q", "p"], committed_id=40),
    )
    report = importing(tmp_path / "b.jsonl", tmp_path / "a.jsonl")
    assert [record.id for record in read_store(tmp_path / "data")] == ["e1", "e2", "e4", "e6"]
    assert {row["id"]: row["reason"] for row in rejected(tmp_path)} == {"e3": "refused", "e5": "refused"}
    assert report.prepared.judged == JudgingSummary(rounds=2, again=3)


def test_order_assigned_by_time_and_times_never_go_back(importing: Importing, tmp_path: Path) -> None:
    file = write(
        tmp_path / "a.jsonl",
        put("late", status_updated_at=9_000),
        put("first", status_updated_at=1_000),
        put("tie", status_updated_at=9_000),
        put("none"),
        put("iso", status_updated_at="1970-01-01T00:00:05Z"),
        put("future", status_updated_at=250_000_000_000_000),
    )
    importing(file, order="assign")
    records = read_store(tmp_path / "data")
    assert [record.id for record in records] == ["first", "iso", "late", "tie", "future", "none"]
    times = [record.status_updated_at for record in records]
    assert times[:4] == [1_000, 5_000, 9_000, 9_000]
    assert times[4] == times[5] < 250_000_000_000_000
    assert check_directory(tmp_path / "data").findings == ()


def test_without_ids_the_order_is_that_of_the_rows(importing: Importing, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", put("b", status_updated_at=5), put("a", status_updated_at=3), put("c"))
    importing(file)
    records = read_store(tmp_path / "data")
    assert [(record.id, record.status_updated_at) for record in records] == [("b", 5), ("a", 5), ("c", 5)]
    mixed = write(tmp_path / "m.jsonl", put("d", committed_id=4), put("e"))
    importing(mixed)
    assert [record.id for record in read_store(tmp_path / "data")] == ["b", "a", "c", "d"]
    assert [row["reason"] for row in rejected(tmp_path)] == ["no_committed_id"]


@pytest.mark.req("ORD-05")
def test_into_a_log_that_holds_events(importing: Importing, tmp_path: Path) -> None:
    """Judged against its states; its ids count, also those of events that have left it."""
    held = make_store(tmp_path / "data", 300)
    log = SqliteLog.open(tmp_path / "data")
    log.set_archive("nowhere")
    log.prune_batch(100)
    log.close()
    same, gone = held[200], held[10]
    tree = next(record for record in held[100:] if b"treePush" in record.event)
    item = msgspec.json.decode(tree.event)["payload"]["value"]["id"]
    rows = [
        {"id": same.id, "partitions": list(same.partitions), "event": msgspec.Raw(same.event)},
        {"id": gone.id, "partitions": list(gone.partitions), "event": msgspec.Raw(gone.event)},
        put(held[5].id),
        put(held[201].id),
        put("new"),
    ]
    report = importing(write(tmp_path / "a.jsonl", *rows), full=False)
    assert report.prepared.totals.known == 2
    assert report.prepared.reasons == {"conflict_in_log": 2}
    reader = open_reader(sqlite_uri(tmp_path / "data"))
    records = reader.scan(100, 1_000, limit=1_000)
    reader.close()
    assert [record.id for record in records[200:]] == ["new"]
    assert records[-1].committed_id == 301
    assert records[-1].status_updated_at >= held[-1].status_updated_at
    fresh = tmp_path / "fresh"
    make_store(fresh, 300)
    again = {"type": "treePush", "payload": {"target": "doc", "value": {"id": item}}}
    partition = tree.partitions[0]
    rows = [
        {"id": "again", "partitions": [partition], "event": again},
        {"id": "elsewhere", "partitions": ["nobody was here"], "event": again},
    ]
    report = importing(write(tmp_path / "b.jsonl", *rows), store=sqlite_uri(fresh))
    assert report.prepared.reasons == {"refused": 1}
    assert [record.id for record in read_store(fresh)[300:]] == ["elsewhere"]


@pytest.mark.soak
def test_beside_a_server_and_after_it(importing: Importing, tmp_path: Path) -> None:
    """A dry run may look while a server runs; what it prepared is judged again when the log has moved."""
    file = write(tmp_path / "a.jsonl", push("mine", "x", ["p"]), push("other", "y", ["p"]))
    event = canonical({"type": "treePush", "payload": {"target": "t", "value": {"id": "x"}}})
    log = SqliteLog.open(tmp_path / "data")
    try:
        assert importing(file, dry_run=True).prepared.totals.accepted == 2
        with pytest.raises(NoSuchStore, match="in use"):
            importing(file)
        log.begin([])
        log.commit([Record(1, "theirs", "c", ("p",), event, content_hash(event, b'["p"]'), 5)])
    finally:
        log.close()
    assert importing(file, dry_run=True).prepared.reasons == {"refused": 1}
    report = importing(file, rejects=str(tmp_path / "not where the dry run put them"))
    assert report.prepared.reasons == {"refused": 1}
    assert [row["id"] for row in rejected(tmp_path, "not where the dry run put them")] == ["mine"]
    assert [record.id for record in read_store(tmp_path / "data")] == ["theirs", "other"]


def test_what_another_log_had_is_not_known(importing: Importing, tmp_path: Path) -> None:
    """A dry run found every row in a log that has been replaced by an empty one, or by another, since."""
    file = write(tmp_path / "a.jsonl", put("one"), put("two"))
    importing(file)
    for others in (0, 2):
        assert importing(file, dry_run=True).prepared.totals.known == 2
        shutil.rmtree(tmp_path / "data")
        if others:
            make_store(tmp_path / "data", others)
        assert importing(file).prepared.totals.accepted == 2
        assert [record.id for record in read_store(tmp_path / "data")[others:]] == ["one", "two"]


@pytest.mark.parametrize("prepared", [False, True], ids=["at once", "after a dry run"])
def test_what_was_loaded_into_another_log_is_not_loaded(
    importing: Importing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: bool
) -> None:
    """Killed when all rows were in a log that was empty before, and which is then replaced by another one."""
    file = write(tmp_path / "a.jsonl", *map(put, "abcde"))
    if prepared:
        importing(file, dry_run=True)
    with monkeypatch.context() as killed:
        killed.setattr(Staging, "remove", interrupt)
        with pytest.raises(KeyboardInterrupt):
            importing(file)
    assert len(read_store(tmp_path / "data")) == 5
    shutil.rmtree(tmp_path / "data")
    held = make_store(tmp_path / "data", 7)
    report = importing(file)
    assert report.loaded is not None
    assert (report.loaded.committed, report.loaded.present, report.loaded.head) == (5, 0, 12)
    assert [record.id for record in read_store(tmp_path / "data")] == [*(one.id for one in held), *"abcde"]


def test_broken_off_while_loading(
    importing: Importing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.jsonl"
    planted = write_lines(Legacy(800, seed=3, faults=0), file)
    add, calls = Loader.add, 0

    def failing(loader: Loader, group: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return add(loader, group)

    monkeypatch.setattr(Loader, "add", failing)
    with pytest.raises(KeyboardInterrupt):
        importing(file, group_rows=100)
    assert len(read_store(tmp_path / "data")) == 300
    # The note of how far it was may be behind what is in the log.
    next((tmp_path / "staging").glob("*/loaded.json")).write_bytes(b"150")
    report = importing(file)
    assert report.loaded is not None
    assert (report.loaded.committed, report.loaded.present) == (500, 300)
    assert [record.id for record in read_store(tmp_path / "data")] == planted.ids


def test_into_a_shared_log(
    importing: Importing,
    database: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.jsonl"
    planted = write_lines(Legacy(600, seed=5), file)
    log = PostgresLog.open(database, "node")
    append(log, 40)
    report = importing(file, store=database)
    require_planted(report, planted)
    assert report.loaded is not None
    assert (report.loaded.committed, report.loaded.head) == (planted.accepted, planted.accepted + 40)
    assert len(log.catch_up(fresh=True).records) == planted.accepted, "nodes learn of it as of any event"
    log.close()
    reader = open_reader(database)
    found = reader.scan(40, 10_000, limit=10_000)
    reader.close()
    assert [record.id for record in found] == planted.ids


@pytest.mark.parametrize(("theirs", "again"), [("elsewhere", False), ("p", True)])
def test_nodes_go_on_while_rows_are_loaded(
    importing: Importing,
    database: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    theirs: str,
    again: bool,
) -> None:
    """What others commit elsewhere does not matter; in partitions of the import it means judging again."""
    file = write(tmp_path / "a.jsonl", *(push(f"mine-{n}", f"n{n}", ["p"]) for n in range(6)))
    event = canonical({"type": "treePush", "payload": {"target": "t", "value": {"id": "n5"}}})
    digest = content_hash(event, canonical([theirs]))
    add, calls = Loader.add, 0

    def interrupted(loader: Loader, group: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            node = PostgresLog.open(database, "node")
            head = node.begin([]).head
            node.commit([Record(head + 1, "theirs", "c", (theirs,), event, digest, 2**41)])
            node.close()
        return add(loader, group)

    monkeypatch.setattr(Loader, "add", interrupted)
    report = importing(file, store=database, group_rows=2)
    reader = open_reader(database)
    found = [record.id for record in reader.scan(0, 100, limit=100)]
    reader.close()
    mine = [f"mine-{n}" for n in range(5 if again else 6)]
    assert found == [*mine[:2], "theirs", *mine[2:]]
    assert report.prepared.reasons == ({"refused": 1} if again else {})
    assert report.prepared.totals.known == (2 if again else 0)
    assert report.loaded is not None
    assert (report.loaded.committed, report.loaded.foreign) == ((3, 0) if again else (6, 1))


def test_a_file_that_is_still_being_written(spark: SparkSession, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", put("a"))
    plan = ImportPlan(
        sqlite_uri(tmp_path / "data"),
        tuple(find([file], None)),
        tmp_path / "staging",
        str(tmp_path / "rejects"),
    )
    write(file, put("a"), put("b"))
    with pytest.raises(PipelineError, match="was changed while it was read"):
        run(plan, lambda: spark, lambda _text: None)
    assert read_store(tmp_path / "data") == []


def test_bad_requests_are_told_before_any_work(importing: Importing, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="neither a file nor a directory"):
        importing(tmp_path / "nowhere.jsonl")
    (tmp_path / "rejects").mkdir()
    (tmp_path / "rejects" / "letter.txt").write_text("dear")
    with pytest.raises(PipelineError, match="choose another --rejects"):
        importing(write(tmp_path / "a.jsonl", put("a")))
