"""Backups of an embedded log while it is written: consistent, stored by what changed, checked when they are read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tests.store.records import make_record
from unisono.store.check import check_directory
from unisono.store.port import LogInUse, Record, StoreUnusable
from unisono.store.sqlite.backup import back_up, verify_backups
from unisono.store.sqlite.backup_files import FORMAT, BackupDamaged, BackupDirectory
from unisono.store.sqlite.log import SqliteLog
from unisono.store.sqlite.reader import SqliteReader
from unisono.store.sqlite.restore import restore_log

EVENTS = 4000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    with closing(SqliteLog.open(tmp_path / "data")) as log:
        extend(log, EVENTS)
        yield log


def extend(log: SqliteLog, count: int) -> None:
    head = log.extent().head
    records = [make_record(number, ("p", f"q{number % 7}")) for number in range(head + 1, head + count + 1)]
    log.begin([record.id for record in records])
    log.commit(records)


def restored(target: Path, to: Path, name: str | None = None) -> Sequence[Record]:
    """All events of a backup, of which every one is sound."""
    done = restore_log(target, to, name)
    report = check_directory(to)
    assert report.ok, report.text()
    assert report.head == done.head
    with closing(SqliteReader.open(to)) as reader:
        return reader.scan(0, done.head, limit=done.head)


@pytest.mark.req("DUR-08")
def test_each_backup_is_the_log_of_its_moment_and_stores_what_changed(log: SqliteLog, tmp_path: Path) -> None:
    target = tmp_path / "target"
    first = back_up(tmp_path / "data", target)
    extend(log, 10)
    second = back_up(tmp_path / "data", target, check=True)
    idle = back_up(tmp_path / "data", target)
    assert [made.manifest.head for made in (first, second, idle)] == [EVENTS, EVENTS + 10, EVENTS + 10]
    assert second.manifest.pack_bytes < first.manifest.pack_bytes / 2
    assert idle.manifest.pack is None
    events = log.scan(0, EVENTS + 10, limit=EVENTS + 10)
    for number, made in enumerate((first, second, idle)):
        assert restored(target, tmp_path / f"to-{number}", made.name) == events[: made.manifest.head]
    with closing(SqliteReader.open(tmp_path / "to-0")) as reader:
        assert reader.identity().log_id != log.identity().log_id, "a restored log is another one"
    assert all((file.stat().st_mode & 0o077) == 0 for file in target.iterdir())


def test_old_backups_leave_with_the_packs_that_nobody_needs(log: SqliteLog, tmp_path: Path) -> None:
    target = tmp_path / "target"
    back_up(tmp_path / "data", target)
    for _ in range(4):
        extend(log, 5)
        newest = back_up(tmp_path / "data", target, keep=2)
    assert newest.removed == 1
    directory = BackupDirectory(target)
    names = directory.names()
    assert len(names) == 2
    needed = {pack for name in names for pack in directory.index(name, directory.manifest(name)).packs}
    assert {file.stem for file in target.glob("*.pack")} == needed
    assert {file.stem for file in target.glob("*.index")} == set(names)
    for name in names:
        assert len(restored(target, tmp_path / name, name)) == directory.manifest(name).head


def test_what_was_damaged_is_named_and_not_restored(log: SqliteLog, tmp_path: Path) -> None:
    target = tmp_path / "target"
    first = back_up(tmp_path / "data", target)
    extend(log, 3)
    second = back_up(tmp_path / "data", target)
    assert verify_backups(target) == {first.name: None, second.name: None}
    pack = target / f"{second.name}.pack"
    content = bytearray(pack.read_bytes())
    content[len(content) // 2] ^= 1
    pack.write_bytes(content)
    found = verify_backups(target)
    assert found[first.name] is None
    assert str(pack) in str(found[second.name])
    with pytest.raises(BackupDamaged):
        restore_log(target, tmp_path / "to")
    assert not (tmp_path / "to" / "log.db").exists()
    assert len(restored(target, tmp_path / "older", first.name)) == EVENTS


def test_after_a_pack_is_gone_the_next_backup_is_whole(
    log: SqliteLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = tmp_path / "target"
    first = back_up(tmp_path / "data", target)
    pack = target / f"{first.name}.pack"
    pack.write_bytes(pack.read_bytes()[:-1])
    back_up(tmp_path / "data", target)
    assert "shorter than it was written" in caplog.text
    pack.unlink()
    assert len(restored(target, tmp_path / "to")) == EVENTS


def test_what_an_interrupted_backup_left_is_removed(log: SqliteLog, tmp_path: Path) -> None:
    target = tmp_path / "target"
    made = back_up(tmp_path / "data", target)
    (target / "image").mkdir()
    (target / "image" / "log.db").write_bytes(b"half")
    for name in ("20990101T000000.000000Z.pack", "x.pack.unfinished", "20990101T000000.000000Z.index"):
        (target / name).write_bytes(b"half")
    (target / "notes.txt").write_text("somebody's own")
    with BackupDirectory(target).locked():
        pass
    extend(log, 1)
    second = back_up(tmp_path / "data", target)
    kept = {f"{done.name}.{kind}" for done in (made, second) for kind in ("json", "index", "pack")}
    assert {file.name for file in target.iterdir()} == kept | {"lock", "notes.txt"}


def test_a_target_holds_the_backups_of_one_log_and_has_one_writer(log: SqliteLog, tmp_path: Path) -> None:
    target = tmp_path / "target"
    made = back_up(tmp_path / "data", target)
    SqliteLog.open(tmp_path / "other").close()
    with pytest.raises(StoreUnusable, match="a target of its own"):
        back_up(tmp_path / "other", target)
    with pytest.raises(StoreUnusable, match="holds no log"):
        back_up(tmp_path / "nowhere", tmp_path / "elsewhere")
    with BackupDirectory(target).locked(), pytest.raises(LogInUse, match="another backup"):
        back_up(tmp_path / "data", target)
    newer = msgspec.structs.replace(made.manifest, format=FORMAT + 1)
    (target / f"{made.name}.json").write_bytes(msgspec.json.encode(newer))
    with pytest.raises(StoreUnusable, match="newer Unisono"):
        restore_log(target, tmp_path / "to")


def test_a_plain_copy_of_a_data_directory_is_no_target(log: SqliteLog, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with pytest.raises(StoreUnusable, match="is the data directory"):
        back_up(data, data)
    log.close()
    (data / "admin.json").write_text('{"url": "http://127.0.0.1:1", "token": "t"}')
    (data / "pipeline.json").write_text("{}")
    assert BackupDirectory(data).names() == []
    assert len(restored(data, tmp_path / "to")) == EVENTS


def test_a_mirror_of_the_target_restores_as_well(log: SqliteLog, tmp_path: Path) -> None:
    target = tmp_path / "target"
    back_up(tmp_path / "data", target)
    shutil.copytree(target, tmp_path / "mirror")
    shutil.rmtree(target)
    assert len(restored(tmp_path / "mirror", tmp_path / "to")) == EVENTS
