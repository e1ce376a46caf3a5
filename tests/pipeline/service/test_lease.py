"""One lake, one service: the lease is had by one at a time, outlives no dead process, and is noticed when lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from deltalake import DeltaTable, TableFeatures

from tests.lake.s3 import object_store
from tests.waiting import in_a_window
from unisono.lake.errors import LakeUnusable
from unisono.lake.storage import Storage
from unisono.pipeline.clock import now_ms
from unisono.pipeline.service import lease as leases
from unisono.pipeline.service.lease import Holder, Lease, LeaseTaken

HOLD = """
import sys, time
from unisono.pipeline.service.lease import Lease
from unisono.lake.storage import Storage
Lease(Storage.at(sys.argv[1]), 600.0).acquire()
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def place(tmp_path: Path) -> Storage:
    return Storage.at(str(tmp_path))


def test_one_at_a_time(place: Storage) -> None:
    first, second = Lease(place), Lease(place)
    first.acquire()
    with pytest.raises(LeaseTaken, match=r"process .* works on the lake"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_of_many_at_once_one_gets_it(place: Storage) -> None:
    Lease(place)._open()
    had: list[Lease] = []
    start = threading.Barrier(8)

    def take() -> None:
        lease = Lease(place)
        start.wait()
        try:
            lease.acquire()
        except LeaseTaken:
            return
        had.append(lease)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(had) == 1
    had[0].release()


def test_a_commit_whose_answer_was_lost_is_the_holders() -> None:
    """The store has it, and refuses the second try: that is no other process."""
    with object_store(lossy=True) as options:
        storage = Storage.at("s3://lake/lossy", options)
        held, other = Lease(storage), Lease(storage)
        held.acquire()
        held._extend(held._end_ms())
        with pytest.raises(LeaseTaken):
            other.acquire()
        held.release()
        other.acquire()
        other.release()


def test_a_table_that_takes_no_commits_is_an_error(place: Storage) -> None:
    lease = Lease(place)
    lease._open().alter.add_feature(TableFeatures.RowTracking, allow_protocol_versions_increase=True)
    with pytest.raises(LakeUnusable, match=r"lease cannot be written: .*RowTracking"):
        lease.acquire()


def test_a_commit_of_another_program_ends_no_lease(place: Storage) -> None:
    """Nor does it let another service begin: who maintains all tables of a place may mean this one too."""
    held, other = Lease(place), Lease(place)
    held.acquire()
    for hours in (2, 3):
        properties = {"delta.logRetentionDuration": f"interval {hours} hours"}
        DeltaTable(place.table(leases.TABLE)).alter.set_table_properties(properties)
        with pytest.raises(LeaseTaken, match=f"process {os.getpid()} on"):
            other.acquire()
    held._extend(held._end_ms())
    held.release()
    other.acquire()
    other.release()


def test_after_a_power_loss(place: Storage) -> None:
    """A commit that was not synced may be empty, or anything else."""
    for content, says in ((b"", None), (b"\0" * 100, "if it is damaged, remove it")):
        lease = Lease(place)
        lease.acquire()
        lease.release()
        newest = max(Path(place.table(leases.TABLE), "_delta_log").glob("*.json"))
        newest.write_bytes(content)
        if says is None:
            lease.acquire()
            lease.release()
            continue
        with pytest.raises(LakeUnusable, match=says):
            lease.acquire()


def test_it_is_renewed_while_it_is_held(tmp_path: Path) -> None:
    def hold(lease_s: float) -> None:
        place = Storage.at(str(tmp_path / f"{lease_s}"))
        held = Lease(place, lease_s=lease_s)
        held.acquire()
        try:
            before = held._open().version()
            time.sleep(1.5 * lease_s)
            assert held._open().version() > before
            assert not held.lost.is_set()
            with pytest.raises(LeaseTaken):
                Lease(place).acquire()
        finally:
            held.release()

    in_a_window(hold, 1.0, 6.0, 30.0)


def test_a_killed_holder_on_this_machine_is_seen_to_be_dead(place: Storage) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, place.location], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(LeaseTaken, match=f"process {process.pid} "):
        Lease(place).acquire()
    process.kill()
    process.communicate()
    own = Lease(place)
    own.acquire()
    own.release()


def test_a_holder_that_nobody_has_buried_yet_is_dead_too(place: Storage) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, place.location], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    own = Lease(place)
    own.acquire()
    own.release()
    process.communicate()


def test_the_number_of_a_process_alone_says_nothing(place: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the next process has the same number, and beside it others have numbers of their own."""
    with monkeypatch.context() as before:
        before.setattr(leases, "_began", lambda _: "1")
        hold(Lease(place))
    own = Lease(place)
    own.acquire()
    own.release()
    with monkeypatch.context() as beside:
        beside.setattr(leases, "_machine", lambda: "another container")
        beside.setattr("os.getpid", lambda: 2**22 + 1)  # none here has this one
        hold(Lease(place))
    with pytest.raises(LeaseTaken):
        Lease(place).acquire()


@pytest.mark.parametrize("off_h", [-24, 0, 24])
def test_a_holder_elsewhere_keeps_it_while_it_renews_it_whatever_its_clock_says(
    place: Storage, monkeypatch: pytest.MonkeyPatch, off_h: int
) -> None:
    away, own = Lease(place, lease_s=30.0), Lease(place)
    waited = 0

    def hold_elsewhere(lease: Lease) -> None:
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr("socket.gethostname", lambda: "elsewhere")
            elsewhere.setattr(leases, "now_ms", lambda: now_ms() + off_h * 3_600_000)
            hold(lease)

    def wait(holder: Holder, _: float) -> bool:
        nonlocal waited
        assert holder.host == "elsewhere"
        hold_elsewhere(away)
        waited += 1
        return waited == 3

    hold_elsewhere(away)
    with pytest.raises(LeaseTaken, match="elsewhere"):
        own.acquire(wait)
    hold_elsewhere(Lease(place, lease_s=0.2))  # and never again, as one whose machine is gone
    own.acquire(lambda _, seconds: threading.Event().wait(min(seconds, 0.05)))
    own.release()


def test_without_waiting_the_clocks_are_compared(place: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("socket.gethostname", lambda: "elsewhere")
        hold(Lease(place))
    own = Lease(place)
    with pytest.raises(LeaseTaken, match="elsewhere"):
        own.acquire()
    later = now_ms() + int((leases.LEASE_S + leases.SKEW_S) * 1_000) + 1
    monkeypatch.setattr(leases, "now_ms", lambda: later)
    own.acquire()
    own.release()


@pytest.mark.parametrize("jump_s", [3_600, -3_600, 86_400, -86_400])
def test_on_one_machine_a_clock_that_is_set_ends_no_lease(
    place: Storage, monkeypatch: pytest.MonkeyPatch, jump_s: int
) -> None:
    held, other = Lease(place), Lease(place)
    held.acquire()
    monkeypatch.setattr(leases, "now_ms", lambda: now_ms() + 1_000 * jump_s)
    with pytest.raises(LeaseTaken):
        other.acquire()
    held.release()
    other.acquire()
    other.release()


def test_a_lease_that_cannot_be_renewed_is_lost_and_says_why(tmp_path: Path) -> None:
    held, other = (Lease(Storage.at(str(tmp_path / "lake")), lease_s=0.3) for _ in range(2))
    held.acquire()
    (tmp_path / "lake").rename(tmp_path / "away")
    (tmp_path / "lake").write_text("in the way")
    assert held.lost.wait(20.0)
    assert held.why.startswith("the lake's lease could not be renewed: ")
    held.release()
    with pytest.raises(LakeUnusable, match="lake/lease cannot be opened"):
        other.acquire()


def test_giving_back_what_is_out_of_reach_is_harmless(tmp_path: Path) -> None:
    held = Lease(Storage.at(str(tmp_path / "lake")))
    held.acquire()
    (tmp_path / "lake").rename(tmp_path / "away")
    (tmp_path / "lake").write_text("in the way")
    held.release()


def hold(lease: Lease) -> None:
    """Take or renew it once, as a process does that is killed then."""
    assert lease._commit(lease._open(), lease._end_ms())


def test_who_slept_too_long_finds_out(place: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Lease(place, lease_s=1.0)
    slow.acquire()
    table = slow._open()
    holder = leases._holder(table)
    assert holder is not None
    other = Lease(place, lease_s=600.0)
    monkeypatch.setattr(
        leases, "_holder", lambda table, real=leases._holder: msgspec.structs.replace(real(table), until_uptime_ms=1)
        if real(table).name == holder.name
        else real(table),
    )  # fmt: skip
    other.acquire()
    assert slow.lost.wait(5.0)
    assert slow.why.startswith("the lake's lease was lost: process ")
    slow.release()
    newest = leases._holder(other._open())
    assert newest is not None
    assert newest.pid == holder.pid
    with pytest.raises(LeaseTaken):
        Lease(place).acquire()  # giving back what was lost gave nothing back
    other.release()
