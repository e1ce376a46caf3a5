"""An audit whose tasks may not read the lake: that is no damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from tests.lake.lakes import HERE
from tests.lake.s3 import object_store
from tests.pipeline.history import make_store
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG, SNAPSHOTS, Storage
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.audit.findings import FindingTally
from unisono.pipeline.jobs.audit.job import AuditOptions, check_parts, make_scope
from unisono.pipeline.jobs.audit.replay_tasks import replay_snapshots
from unisono.pipeline.jobs.audit.tasks import AuditOutcome, Scope
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.progress import silent


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    data = tmp_path_factory.mktemp("data")
    make_store(data, 50)
    with object_store() as options:
        made = Lake.at("s3://lake/history", options)
        made.make(buckets=2)
        export(HERE, sqlite_uri(data), made)
        snapshot(HERE, made, ShippedModel.open())
        yield made


@pytest.fixture
def scope(lake: Lake) -> Scope:
    """That of an audit whose executors have other keys than the driver."""
    refused = Storage(lake.storage.location, {**lake.storage.options, "aws_access_key_id": "nobody"})
    tally = FindingTally(50)
    found = make_scope(lake, lake.table(LOG), lake.table(BY_PARTITION), None, AuditOptions(), tally)
    return msgspec.structs.replace(found, storage=refused)


ERROR = r"s3://lake/history/.*\.parquet cannot be read, so nothing is known of it: .*lacked the necessary privileges"


def test_files_of_events(lake: Lake, scope: Scope) -> None:
    files = [file for name in (LOG, BY_PARTITION) for file in lake.table(name).files()]
    for file in files:
        with pytest.raises(PipelineError, match=ERROR):
            list(check_parts(scope, 1, [file]))


def test_snapshots(lake: Lake, scope: Scope) -> None:
    files = [file for name in (LOG, BY_PARTITION, SNAPSHOTS) for file in lake.table(name).files()]
    with pytest.raises(PipelineError, match=ERROR):
        replay_snapshots(HERE, scope, files, lake.table(SNAPSHOTS), None, AuditOutcome(scope), silent)


def test_a_directory_that_executors_do_not_see(lake: Lake, scope: Scope, tmp_path: Path) -> None:
    """As of a lake on the driver's own disk, and executors on other machines."""
    elsewhere = msgspec.structs.replace(scope, storage=Storage.at(str(tmp_path / "lake")))
    says = "an executor does not see .*lake.*: a lake on a cluster needs shared storage"
    files = [file for name in (LOG, BY_PARTITION, SNAPSHOTS) for file in lake.table(name).files()]
    for file in files[:2]:
        with pytest.raises(PipelineError, match=says):
            list(check_parts(elsewhere, 1, [file]))
    with pytest.raises(PipelineError, match=says):
        replay_snapshots(HERE, elsewhere, files, lake.table(SNAPSHOTS), None, AuditOutcome(scope), silent)


def test_damage_in_an_object_store_is_a_finding(lake: Lake, scope: Scope) -> None:
    (file,) = lake.table(LOG).files()
    with lake.storage.read(LOG, file.path) as source:
        content = bytearray(source.read())
    content[100:200] = bytes(100)
    lake.storage.remove(f"{LOG}/{file.path}")
    lake.storage.write(LOG, file.path, pa.py_buffer(bytes(content)))
    *_, (_, outcome) = check_parts(msgspec.structs.replace(scope, storage=lake.storage), 1, [file])
    assert [finding.kind for finding in outcome.tally.kept()] == ["file"]
