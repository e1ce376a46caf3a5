"""Which log a data directory holds: made with it, kept by copies of the whole, another after a restore."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tests.commands import unisono
from tests.store.records import append, make_record
from tests.store.sqlite.old_logs import make_version_1
from unisono.store.check import check_directory
from unisono.store.copy import CopyRefused, copy_log
from unisono.store.port import Snapshot
from unisono.store.sqlite.log import SqliteLog, SqliteReader
from unisono.store.sqlite.restore import restore_log
from unisono.vocabulary import LogIdentity


def opened(directory: Path, events: int = 0) -> LogIdentity:
    with closing(SqliteLog.open(directory)) as log:
        append(log, [["p"]] * events)
        return log.identity()


@pytest.mark.req("DUR-08")
def test_every_log_has_an_identity_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    one, other = opened(tmp_path / "one", 3), opened(tmp_path / "other")
    assert (len(one.log_id), one.log_epoch) == (32, 1)
    assert one.log_id != other.log_id
    assert opened(tmp_path / "one") == one
    with closing(SqliteReader.open(tmp_path / "one")) as reader:
        assert reader.identity() == one
    assert check_directory(tmp_path / "one").ok


@pytest.mark.req("DUR-08", "DUR-07")
def test_a_log_of_an_earlier_version_gets_one(tmp_path: Path) -> None:
    make_version_1(tmp_path)
    one = opened(tmp_path)
    assert (len(one.log_id), one.log_epoch) == (32, 1)
    assert opened(tmp_path) == one
    assert check_directory(tmp_path).ok


@pytest.mark.req("AUTH-10", "EXT-03")
def test_events_of_an_earlier_version_have_no_author(tmp_path: Path) -> None:
    old = make_version_1(tmp_path)
    with closing(SqliteLog.open(tmp_path)) as log:
        assert list(log.scan(0, 300, limit=300)) == old
        log.begin([])
        log.commit([make_record(301, author='{"user_id":"ann"}')])
        page = log.wire_page(["p"], 299, 301, limit=9, bytes_max=10**6, authors=True)
        assert ["user_id" in event for event in json.loads(b"[%b]" % page.events)] == [False, True]
    report = check_directory(tmp_path)
    assert report.ok, report.text()


@pytest.mark.req("DUR-08")
def test_a_directory_moved_or_copied_as_a_whole_is_the_same_log(tmp_path: Path) -> None:
    one = opened(tmp_path / "one", 3)
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    (tmp_path / "one").rename(tmp_path / "moved")
    assert opened(tmp_path / "copy") == opened(tmp_path / "moved") == one


@pytest.mark.req("DUR-08")
def test_a_file_put_back_alone_counts_as_restored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    one = opened(data, 3)
    shutil.copy(data / "log.db", tmp_path / "backup.db")
    assert opened(data, 3) == one
    shutil.copy(tmp_path / "backup.db", data / "log.db")
    restored = opened(data)
    assert restored.log_id == one.log_id
    assert restored.log_epoch > 1
    assert "older than the one last open here" in caplog.text
    assert opened(data) == restored
    (tmp_path / "new").mkdir()
    shutil.copy(tmp_path / "backup.db", tmp_path / "new" / "log.db")
    again = opened(tmp_path / "new")
    assert again.log_id == one.log_id
    assert again.log_epoch > restored.log_epoch, "an epoch is never given twice"
    opened(tmp_path / "stranger")
    shutil.copy(tmp_path / "stranger" / "log.db", data / "log.db")
    assert opened(data).log_epoch > 1
    assert "another log than the one last open here" in caplog.text


@pytest.mark.req("DUR-08")
def test_a_restore_is_another_log_each_time(tmp_path: Path) -> None:
    one = opened(tmp_path / "one", 5)
    found = set()
    for name, source in (("a", tmp_path / "one"), ("b", tmp_path / "one" / "log.db")):
        done = restore_log(source, tmp_path / name)
        assert (done.events, done.head, done.identity.log_epoch) == (5, 5, 1)
        assert opened(tmp_path / name) == done.identity
        assert check_directory(tmp_path / name).ok
        found.add(done.identity.log_id)
    assert len(found - {one.log_id}) == 2
    assert opened(tmp_path / "one") == one
    with pytest.raises(CopyRefused, match="is not empty"):
        restore_log(tmp_path / "one", tmp_path / "a")


@pytest.mark.req("DUR-08")
def test_a_backup_of_an_earlier_version_can_be_restored(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    make_version_1(tmp_path / "old")
    done = restore_log(tmp_path / "old", tmp_path / "new")
    assert (done.events, done.head) == (300, 300)
    assert opened(tmp_path / "new") == done.identity


@pytest.mark.req("DUR-08")
def test_the_commands_tell_which_log_it_is(tmp_path: Path) -> None:
    one = opened(tmp_path / "one", 2)
    done = unisono("restore", "--from", str(tmp_path / "one"), "--data", str(tmp_path / "two"))
    two = opened(tmp_path / "two")
    assert done.exit_code == 0, done.output
    assert (
        f"restored 2 events up to 2 into {tmp_path / 'two'}: log_id {two.log_id}, log_epoch 1" in done.output
    )
    assert two.log_id != one.log_id
    for arguments, words in (
        (("restore", "--from", str(tmp_path / "one"), "--data", str(tmp_path / "two")), "is not empty"),
        (("restore", "--from", str(tmp_path), "--data", str(tmp_path / "three")), "holds no log"),
        (("db", "new-epoch"), "give --store or --data"),
    ):
        refused = unisono(*arguments)
        assert refused.exit_code == 2, refused.output
        assert words in refused.output
    done = unisono("db", "new-epoch", "--data", str(tmp_path / "two"))
    after = opened(tmp_path / "two")
    assert f"log_id {two.log_id}, log_epoch {after.log_epoch}, before it was 1" in done.output
    with closing(SqliteLog.open(tmp_path / "two")):
        in_use = unisono("db", "new-epoch", "--data", str(tmp_path / "two"))
        assert in_use.exit_code == 2
        assert "is in use by process" in in_use.output


@pytest.mark.req("DUR-08", "DUR-07")
def test_a_copy_is_the_same_log_unless_it_is_of_a_backup(tmp_path: Path) -> None:
    one = opened(tmp_path / "one", 4)
    with closing(SqliteLog.open(tmp_path / "one")) as log:
        log.put_snapshots([Snapshot("p", 2, 7, b"{}", 1, "content")])
        one = log.new_epoch()
    assert copy_log(tmp_path / "one", tmp_path / "moved").identity == one
    assert opened(tmp_path / "moved") == one
    restored = copy_log(tmp_path / "one", tmp_path / "restored", restoring=True).identity
    assert restored.log_id != one.log_id
    assert copy_log(tmp_path / "one", tmp_path / "restored", restoring=True).identity == restored
    again = copy_log(tmp_path / "one", tmp_path / "moved", restoring=True).identity
    assert again.log_id not in (one.log_id, restored.log_id)
    assert opened(tmp_path / "moved") == again
    with closing(SqliteReader.open(tmp_path / "restored")) as reader:
        assert reader.snapshot("p", 7, "content") == Snapshot("p", 2, 7, b"{}", 1, "content")
        assert reader.snapshot("p", 7, "other content") is None


@pytest.mark.req("DUR-07")
def test_a_snapshot_of_another_content_makes_way(tmp_path: Path) -> None:
    with closing(SqliteLog.open(tmp_path)) as log:
        append(log, [["p"]] * 9)
        log.put_snapshots([Snapshot("p", 9, 1, b"old", 1, "old")])
        log.put_snapshots([Snapshot("p", 4, 1, b"new", 2, "new")])
        assert log.snapshot("p", 1, "old") is None
        assert log.snapshot("p", 1, "new") == Snapshot("p", 4, 1, b"new", 2, "new")
        assert (dict(log.watermarks(1, "old")), dict(log.watermarks(1, "new"))) == ({}, {"p": 4})
        log.put_snapshots([Snapshot("p", 3, 1, b"newer", 2, "new")])
        assert dict(log.watermarks(1, "new")) == {"p": 4}


def test_what_lies_beside_the_log_may_be_damaged(tmp_path: Path) -> None:
    one = opened(tmp_path)
    (tmp_path / "log.identity").write_text("not JSON")
    assert opened(tmp_path).log_epoch > one.log_epoch
    connection = apsw.Connection(str(tmp_path / "log.db"))
    assert connection.execute("SELECT log_id FROM head").get == one.log_id
    connection.close()
