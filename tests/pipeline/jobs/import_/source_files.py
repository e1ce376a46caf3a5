"""Files to import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unisono.model.model import open_model
from unisono.pipeline.jobs.import_.outcomes import RefusedRow
from unisono.pipeline.jobs.import_.rows import ImportedEvent, SourceRow, to_event
from unisono.pipeline.jobs.import_.sources import SourceFile, find

MODEL = open_model()
SET: Any = {"type": "set", "payload": {"target": "a", "value": 1}}


def event_of(row: SourceRow) -> ImportedEvent | RefusedRow:
    return to_event(row, MODEL, "import")


def good(row: SourceRow) -> ImportedEvent:
    event = event_of(row)
    assert isinstance(event, ImportedEvent), event
    return event


def source(path: Path, format: str = "jsonl") -> SourceFile:
    return find([path], format)[0]


def row(**values: Any) -> SourceRow:
    whole: dict[str, Any] = {"id": "e", "partitions": ["p"], "event": json.dumps(SET).encode()}
    return SourceRow(1, **(whole | values))
