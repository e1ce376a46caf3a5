"""Whole runs: what is left out and said so, the commands, and one run of everything with this tree alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from benchmarks.__main__ import PARTS
from benchmarks.comparison.compare import BASE, NEW, compared, shown
from benchmarks.comparison.measure import Sample
from benchmarks.comparison.peers import chosen_systems, measured, show
from benchmarks.comparison.report import times
from benchmarks.comparison.results import Row, Run, Table
from benchmarks.comparison.workloads import OPEN, QUICK, Plan, all_systems, running
from benchmarks.peers.native_peers import UmaDB
from benchmarks.peers.ours import Unisono
from benchmarks.peers.system import ROOT, System


class NotInstalled(UmaDB):
    program = "no-such-program"


class EndsAtOnce(UmaDB):
    def missing(self) -> None:
        return None

    def start(self, folder: Path) -> None:
        self.port = 1
        self._spawn(["sh", "-c", "echo out of order >&2; exit 3"], folder)
        self._until_listening(folder)


def test_a_peer_that_is_missing_or_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    systems: dict[str, System] = {"gone": NotInstalled(), "broken": EndsAtOnce(), OPEN: Unisono()}
    notes: list[str] = []
    with running(systems, tmp_path, notes) as up:
        assert list(up) == [OPEN]
        assert up[OPEN].cpu_s() > 0
        table = Plan(up, QUICK, lambda _: Sample(1.0, 1.0)).workloads()["submit-1"]()
    assert [len(row.samples) for row in table.rows] == [1, 1]
    assert "gone was left out: no-such-program is not in .venv-peers" in notes
    assert any("broken was left out" in note and "out of order" in note for note in notes)
    assert systems[OPEN].process is None


def test_two_revisions_are_shown_by_their_ratios() -> None:
    rows = [
        Row(BASE, [Sample(100, 2, 3, 4), Sample(10, 4, 5, 6)]),
        Row(NEW, [Sample(150, 1, 2, 2), Sample(20, 2, 3, 3)]),
    ]
    text = shown(
        [
            Table("submit-50", "x", "events/s", rows),
            Table("batch-100", "x", "events/s", [Row(BASE, [], "failed: gone")]),
        ]
    )
    head, first, second = text.splitlines()
    assert head.split() == ["base", "new", "ratio", "p50", "ratio", "p99", "ratio", "generator"]
    assert first.split() == ["submit-50", "55", "85", times(1.75), times(0.5), times(0.5), "0.00"]
    assert second.split() == ["batch-100", "failed:", "gone"]


@pytest.mark.soak
def test_this_tree_is_compared_with_itself(tmp_path: Path) -> None:
    notes: list[str] = []
    both: dict[str, System] = {BASE: Unisono(source=ROOT / "src"), NEW: Unisono()}
    with running(both, tmp_path, notes) as up:
        (table,) = compared(up, "submit-1", 1, 0.3)
    assert notes == []
    assert [row.name for row in table.rows if row.samples] == [BASE, NEW]


def test_commands_that_are_not_there_show_those_that_are() -> None:
    for arguments in ([], ["no-such-part"]):
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 2
        assert "python -m benchmarks compare" in ended.stdout
        assert all(part in ended.stdout for part in PARTS)
    assert all((ROOT / "benchmarks" / f"{part}.py").exists() for part in PARTS)


@pytest.mark.soak
def test_a_run_of_everything_with_this_tree_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    systems = chosen_systems(all_systems(), "unisono")
    notes: list[str] = []
    run = measured(tmp_path / "data", systems, QUICK, ["*"], notes)
    assert [note for note in notes if "may be the limit" not in note] == []
    assert [table.key for table in run.tables if not all(row.samples for row in table.rows)] == []
    show(run, tmp_path / "out", write_docs=False)
    kept = msgspec.json.decode((tmp_path / "out" / "results.json").read_bytes(), type=Run)
    assert kept == run
    assert (tmp_path / "out" / "results.md").read_text() == capsys.readouterr().out
