"""A lake in Google's and in Azure's store: the same library, other conditions of a put and other credentials."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.lake.azure import ACCOUNT, KEY, azure_store
from tests.lake.gcs import google_store
from tests.lake.lakes import HERE, compact
from tests.pipeline.history import make_store, row_of
from unisono.lake.cold.archive import CACHE_BYTES
from unisono.lake.cold.pages import LakePages
from unisono.lake.errors import CommitConflict, LakeUnusable
from unisono.lake.lake import Lake
from unisono.lake.storage import LOG
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.compact.job import vacuum
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.import_.sources import find
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.open_log import sqlite_uri


def require_whole_life(location: str, options: dict[str, str], folder: Path) -> None:
    """Export, fold, compact, vacuum, cold pages, racing commits and files to import."""
    records = make_store(folder / "data", 80)
    lake = Lake.at(location, options)
    lake.make(buckets=2)
    for upto in (30, 80):
        export(HERE, sqlite_uri(folder / "data"), lake, to=upto)
    assert snapshot(HERE, lake, ShippedModel.open()).upto == 80
    compact(lake)
    assert vacuum(lake, 0) > 0
    assert [row for batch in lake.scan_arrow() for row in batch.to_pylist()] == [row_of(r) for r in records]
    name = records[0].partitions[0]
    with closing(LakePages(lake, CACHE_BYTES)) as pages:
        page = pages.page([name], 0, 80, limit=80, bytes_max=1 << 20)
    assert [r.id for r in page.records] == [r.id for r in records if name in r.partitions]
    found = find([f"{location}/log"], "parquet", storage_options=options)
    assert sum(source.bytes for source in found) == sum(file.bytes for file in lake.view().log_files)
    one, other = lake.table(LOG), lake.table(LOG)
    one.append([], 80, 81, {})
    with pytest.raises(CommitConflict):
        other.append([], 80, 82, {})
    assert lake.head() == 81


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with google_store(tmp_path_factory.mktemp("google")) as credentials:
        yield credentials


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_keys")
def test_google(google: Path, tmp_path: Path) -> None:
    options = {"google_service_account": str(google), "allow_http": "true"}
    require_whole_life("gs://lake/history", options, tmp_path)


@pytest.mark.usefixtures("no_keys")
def test_the_service_account_of_the_environment(google: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(google))
    assert not Lake.at("gs://lake/nothing", {"allow_http": "true"}).exists()


@pytest.mark.usefixtures("no_keys")
def test_another_service_account_is_refused(google: Path, tmp_path: Path) -> None:
    with google_store(tmp_path) as other:
        wrong = json.loads(other.read_text())
    wrong["gcs_base_url"] = json.loads(google.read_text())["gcs_base_url"]
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    options = {"google_service_account": str(tmp_path / "wrong.json"), "allow_http": "true"}
    with pytest.raises(LakeUnusable, match=r"gs://lake/a/log cannot be opened: .*AuthenticationRequired"):
        Lake.at("gs://lake/a", options).exists()


@pytest.mark.soak
@pytest.mark.usefixtures("no_keys")
def test_azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with azure_store() as options:
        require_whole_life("az://lake/history", options, tmp_path / "a")
        location = f"abfss://lake@{ACCOUNT}.dfs.core.windows.net/other"
        require_whole_life(location, options, tmp_path / "b")
        wrong = {**options, "azure_storage_account_key": "d3Jvbmc="}
        with pytest.raises(LakeUnusable, match="403"):
            Lake.at("az://lake/a", wrong).exists()
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
        bare = {name: options[name] for name in ("azure_storage_endpoint", "allow_http")}
        assert Lake.at("az://lake/history", bare).head() == 81
