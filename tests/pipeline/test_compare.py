"""Planning a comparison of log and lake; what it finds is tested with the jobs that compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lake.lakes import HERE
from tests.pipeline.history import make_store
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.lake.write import UNBUCKETED, DataFile
from unisono.pipeline import compare
from unisono.pipeline.open_log import sqlite_uri

SPANS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 30)), max_size=20)


@given(SPANS, st.integers(0, 90), st.integers(0, 90))
def test_files_of_a_range(spans: list[tuple[int, int]], since: int, upto: int) -> None:
    files = [DataFile(LOG, f"{number}", 1, 1, low, low + more) for number, (low, more) in enumerate(spans)]
    found = compare._FilesById(files).touching(since, upto)
    assert {file.path for file in found} == {
        file.path for file in files if file.last_id > since and file.first_id <= upto
    }


@pytest.mark.timeout(30)
def test_many_runs_are_planned_in_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lake that was never compacted: looking at all files for each of them would take minutes."""
    count = 30_000
    make_store(tmp_path / "data", 1)
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make()
    view, seen = lake.view(), list[compare.CompareTask]()
    view.log_files = [DataFile(LOG, f"{id}", 1, 1, id, id) for id in range(1, count + 1)]
    view.all_partition_files = [
        DataFile(BY_PARTITION, f"{id}", 1, 1, id, id, UNBUCKETED, "a", "b") for id in range(1, count + 1)
    ]

    def planned(_: Any, tasks: Sequence[compare.CompareTask], *__: Any, **___: Any) -> list[Any]:
        seen.extend(tasks)
        return [compare._ComparedPart(None)] * len(tasks)

    monkeypatch.setattr(compare, "run_on_executors", planned)
    ranges = compare.compare_rows(HERE, sqlite_uri(tmp_path / "data"), view, 0, count)
    assert [(part.since, part.upto) for part in ranges] == [(id - 1, id) for id in range(1, count + 1)]
    assert [len(task.log) + len(task.by_partition) for task in seen] == [1] * (2 * count)
