"""A lake in an object store, without Spark: racing commits, credentials, and a store that is busy or away."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from tests.lake.s3 import KEY, SECRET, object_store
from unisono.lake.errors import LakeUnusable
from unisono.lake.lake import Lake
from unisono.lake.object_store import RETRIES
from unisono.lake.storage import LOG, Storage

RACE = """
import sys, msgspec
from unisono.lake.errors import CommitConflict
from unisono.lake.lake import Lake
lake = Lake.at("s3://lake/race", msgspec.json.decode(sys.argv[1]))
table, end = lake.table("log"), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
try:
    table.append([], 0, end, {})
except CommitConflict:
    print("conflict")
else:
    print("committed")
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with object_store() as options:
        yield options


def without_keys(options: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if "key" not in name}


def test_of_commits_at_the_same_time_one_wins(s3: dict[str, str]) -> None:
    lake = Lake.at("s3://lake/race", s3)
    lake.make(buckets=2)
    given = msgspec.json.encode(s3).decode()
    with ExitStack() as stack:
        writers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", RACE, given, str(end)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for end in (1, 2, 3, 4)
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("\n")
            writer.stdin.flush()
        said = [writer.communicate(timeout=60)[0].strip() for writer in writers]
    assert sorted(said) == ["committed", "conflict", "conflict", "conflict"]
    assert lake.head() == said.index("committed") + 1


def test_a_busy_store_is_tried_again() -> None:
    with object_store(busy=True) as options:
        lake = Lake.at("s3://lake/busy", options)
        lake.make(buckets=2)
        lake.table(LOG).append([], 0, 7, {})
        assert lake.head() == 7


def test_a_store_that_is_away_is_given_up(s3: dict[str, str]) -> None:
    gone = {**s3, "aws_endpoint_url": "http://127.0.0.1:9", "max_retries": "2"}
    with pytest.raises(LakeUnusable, match=r"s3://lake/a/log cannot be opened: .*127\.0\.0\.1:9.*2 retries"):
        Lake.at("s3://lake/a", gone).exists()


def test_retries_are_bounded_unless_said_otherwise() -> None:
    assert Storage.at("gs://lake/a").options["retry_timeout"] == "60s"
    assert Storage.at("gs://lake/a", {"Retry_Timeout": "5s"}).options["retry_timeout"] == "5s"
    assert Storage.at("/data/lake", {"a": "b"}).options == {}


def test_wrong_keys_are_an_error(s3: dict[str, str]) -> None:
    with pytest.raises(LakeUnusable, match="InvalidAccessKeyId"):
        Lake.at("s3://lake/a", {**s3, "aws_access_key_id": "nobody"}).exists()


def test_keys_of_the_environment(s3: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert not Lake.at("s3://lake/nothing", without_keys(s3)).exists()


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    (tmp_path / "credentials").write_text(
        f"[lakes]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    )
    (tmp_path / "config").write_text("[profile lakes]\nregion = us-east-1\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "lakes")


@pytest.mark.usefixtures("profile")
def test_keys_of_a_profile(s3: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    given = without_keys(s3)
    del given["aws_region"]
    assert not Lake.at("s3://lake/nothing", given).exists()
    assert Storage.at("s3://lake/nothing", given).options["aws_region"] == "us-east-1"

    monkeypatch.setenv("AWS_PROFILE", "others")
    with pytest.raises(LakeUnusable, match=r"AWS_PROFILE is others: .*others"):
        Storage.at("s3://lake/nothing", given)
    assert Storage.at("s3://lake/nothing", s3).options["aws_access_key_id"] == KEY  # no profile is asked for


def test_http_is_refused_until_it_is_allowed(s3: dict[str, str]) -> None:
    options = {name: value for name, value in s3.items() if name != "aws_allow_http"}
    with pytest.raises(LakeUnusable, match="http:// needs the option aws_allow_http=true"):
        Lake.at("s3://lake/plain", options).exists()


def test_objects_of_somebody_else_are_no_place_for_a_table(s3: dict[str, str]) -> None:
    place = Storage.at("s3://lake/shared", s3)
    place.write("log", "app/today.log", pa.py_buffer(b"started"))
    with pytest.raises(LakeUnusable, match=r"shared/log has files and is no table of ours .app/today.log."):
        Lake(place).make(buckets=2)
    Lake.at("s3://lake/shared/deeper", s3).make(buckets=2)


@pytest.mark.parametrize("location", ["s3://a", "S3://a"])
def test_options_win_over_a_profile_however_they_are_spelt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, location: str
) -> None:
    credentials = tmp_path / "credentials"
    credentials.write_text(
        "[work]\naws_access_key_id = other\naws_secret_access_key = other\nregion = there\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_PROFILE", "work")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    given = {"access_key_id": "mine", "secret_access_key": "mine", "region": "here"}
    assert Storage.at(location, given).options == {**RETRIES, **given}
    assert Storage.at(location).options["aws_access_key_id"] == "other"
    assert "aws_region" not in Storage.at(location, {"region": "here"}).options


@pytest.mark.usefixtures("profile")
def test_a_profile_without_botocore_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(LakeUnusable, match="pip install botocore"):
        Storage.at("s3://lake/nothing")
