from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from unisono.node.heap import keep_freed_memory

GROUPS = """
import resource, sys
from unisono.node.heap import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def group():
    return [bytes(20_000) for _ in range(300)]
group()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    group()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_asked_for(how: str) -> int:
    asked = [sys.executable, "-c", GROUPS, how]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the C library of Linux")
def test_the_memory_of_a_group_is_not_asked_for_again() -> None:
    given_back, kept = pages_asked_for("given back"), pages_asked_for("kept")
    assert given_back > 20 * 1000, "the C library gives it back without our asking"
    assert kept < given_back / 20


def test_a_c_library_without_the_option_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing:
        pass

    monkeypatch.setattr("unisono.node.heap.ctypes.CDLL", lambda _: Nothing())
    keep_freed_memory()
