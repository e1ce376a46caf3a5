"""Checks that every tombstone is in the lake's record of erasures, and that every recorded event is a tombstone.

A lake without that record has nothing to compare; its tombstones are counted and listed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from unisono.lake.storage import ERASURES, Storage
from unisono.pipeline.jobs.audit.findings import FindingTally


def recorded_erasures(storage: Storage, head: int, tally: FindingTally) -> Any:
    """The recorded ids, ascending; None when the lake has no record."""
    try:
        table = DeltaTable(storage.table(ERASURES), storage_options=storage.options or None)
        # `to_pyarrow_table` reads in threads that call Python: one that does so while the process ends aborts it.
        rows = (
            QueryBuilder().register("erasures", table).execute("SELECT committed_id FROM erasures").read_all()
        )
        ids = pa.table(rows).column("committed_id")
    except TableNotFoundError:
        return None
    except (DeltaError, OSError, ValueError, KeyError) as error:
        tally.add("erasure", f"the table {ERASURES} cannot be read: {str(error).partition(chr(10))[0]}")
        return None
    found = np.unique(np.asarray(pc.drop_null(ids.combine_chunks()), np.int64))
    return found[found <= head]


def check_tombstones(erased: Any, record: Any, tally: FindingTally) -> None:
    """Compare the ids of all tombstones (`erased`) with the record; both ascend."""
    if record is None:
        return
    for id in np.setdiff1d(erased, record):
        tally.add("erasure", "it is a tombstone, and no erasure is recorded for it", int(id))
    for id in np.setdiff1d(record, erased):
        tally.add("erasure", "its erasure is recorded, and it is still there", int(id))
