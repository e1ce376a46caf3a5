"""One lake, one service: the lease is had by one at a time, outlives no dead process, and is noticed when lost."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from unisono.pipeline import lease as leases
from unisono.pipeline.lease import Lease, Taken
from unisono.store.delta.storage import Storage

HOLD = """
import sys, time
from unisono.pipeline.lease import Lease
from unisono.store.delta.storage import Storage
Lease(Storage.at(sys.argv[1]), 600.0).take()
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def place(tmp_path: Path) -> Storage:
    return Storage.at(str(tmp_path))


def test_one_at_a_time(place: Storage) -> None:
    first, second = Lease(place), Lease(place)
    first.take()
    with pytest.raises(Taken, match=r"process .* is at work on the lake"):
        second.take()
    first.give_back()
    second.take()
    second.give_back()


def test_of_many_at_once_one_gets_it(place: Storage) -> None:
    Lease(place)._open()
    had: list[Lease] = []
    start = threading.Barrier(8)

    def take() -> None:
        lease = Lease(place)
        start.wait()
        try:
            lease.take()
        except Taken:
            return
        had.append(lease)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(had) == 1
    had[0].give_back()


def test_it_is_renewed_while_it_is_held(place: Storage) -> None:
    held = Lease(place, lease_s=1.0)
    held.take()
    before = held._open().version()
    time.sleep(1.5)
    assert held._open().version() > before
    assert not held.lost.is_set()
    with pytest.raises(Taken):
        Lease(place).take()
    held.give_back()


def test_a_killed_holder_on_this_machine_is_seen_to_be_dead(place: Storage) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, place.location], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(Taken, match=f"process {process.pid} "):
        Lease(place).take()
    process.kill()
    process.communicate()
    own = Lease(place)
    own.take()
    own.give_back()


def test_a_holder_elsewhere_keeps_it_until_it_runs_out(
    place: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "SKEW_S", 0.0)
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    away = Lease(place, lease_s=2.0)
    assert away._try() is None  # taken and never renewed, as by one whose machine is gone
    monkeypatch.undo()
    monkeypatch.setattr(leases, "SKEW_S", 0.0)
    own = Lease(place)
    with pytest.raises(Taken, match="elsewhere"):
        own.take()
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        time.sleep(seconds)
        return False

    own.take(wait)
    assert waited
    own.give_back()


def test_who_slept_too_long_finds_out(place: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Lease(place, lease_s=1.0)
    slow.take()
    table = slow._open()
    holder = leases._holder(table)
    assert holder is not None
    other = Lease(place, lease_s=600.0)
    monkeypatch.setattr(
        leases, "_holder", lambda table, real=leases._holder: msgspec.structs.replace(real(table), until_ms=1)
        if real(table).name == holder.name
        else real(table),
    )  # fmt: skip
    other.take()
    assert slow.lost.wait(5.0)
    slow.give_back()
    newest = leases._holder(other._open())
    assert newest is not None
    assert newest.pid == holder.pid
    with pytest.raises(Taken):
        Lease(place).take()  # giving back what was lost gave nothing back
    other.give_back()
