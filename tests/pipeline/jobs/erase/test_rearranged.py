"""An erasure that was killed between its tables, one of which another program rearranged before the next run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lake.guests import vacuum, z_order
from tests.lake.lakes import HERE
from tests.pipeline.history import require_exact
from tests.pipeline.jobs.erase.erasing import BY_CULPRIT, expected, run
from tests.pipeline.jobs.erase.prepared import Prepared
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.pipeline.jobs.compact.foreign_files import rewrite_foreign_files
from unisono.pipeline.jobs.erase.erasure_table import record
from unisono.pipeline.jobs.erase.job import plan
from unisono.pipeline.jobs.erase.rewrite import TombstoneTimes, rewrite
from unisono.pipeline.open_log import sqlite_uri


@pytest.mark.parametrize("table", [LOG, BY_PARTITION])
def test_the_next_run_completes_it(prepared: Prepared, tmp_path: Path, table: str) -> None:
    """The tables differ in what a tombstone takes away alone, so the lake can be read and put in order."""
    data, lake = prepared.copy(tmp_path)
    begun = plan(HERE, sqlite_uri(data), lake, BY_CULPRIT).selection
    archived = [event for event in begun.events if event.committed_id <= lake.head()]
    times = record(lake, archived, 1_800_000_000_000, "client", None)
    assert rewrite(HERE, lake, BY_PARTITION, TombstoneTimes.of(times), begun.partitions)
    z_order(lake, table)
    vacuum(lake)
    assert lake.table(table).foreign_files()
    lake.view().require_whole()
    rewrite_foreign_files(HERE, lake)
    done = run(HERE, data, lake)
    traces = [trace.place.path for trace in done.proof.traces]
    assert not [path for path in traces if "/_delta_log/" not in path], "others put texts into statistics"
    require_exact(lake, [one for one in expected(prepared.records, lake) if one.committed_id <= lake.head()])
