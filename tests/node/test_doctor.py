"""`unisono doctor`: what it says of this machine, and what it would say of a worse one."""

from __future__ import annotations

import json
import resource
from contextlib import closing
from pathlib import Path

import apsw
import msgspec
import pytest

from tests.commands import unisono
from unisono.config import Settings
from unisono.node.doctor import Finding, examine, file_system, free_space, judge_syncs, open_files, sync_rate
from unisono.store.sqlite.log import SqliteLog

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:26 / /srv rw,relatime shared:1 - nfs4 files:/srv rw
31 30 0:27 / /srv/local\\040disk rw - xfs /dev/vdb rw
32 22 0:28 / /run rw - tmpfs tmpfs rw
"""


def of(found: list[Finding], subject: str) -> Finding:
    return next(finding for finding in found if finding.subject == subject)


@pytest.mark.parametrize(
    ("place", "verdict", "words"),
    [
        ("/var/lib", "good", "ext4, mounted at /"),
        ("/srv/data", "bad", "nfs4"),
        ("/srv/local disk/data", "good", "xfs"),
        ("/srvx", "good", "ext4"),
        ("/run/data", "warning", "does not last"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(place: str, verdict: str, words: str) -> None:
    found = file_system(Path(place), MOUNTS)
    assert found.verdict == verdict
    assert words in found.text


@pytest.mark.parametrize(
    ("took", "verdict"),
    [([0.0004] * 100, "good"), ([0.05] * 100, "warning"), ([0.000001] * 100, "warning"), ([0.003], "good")],
)
def test_syncs_are_judged_by_their_median(took: list[float], verdict: str) -> None:
    assert judge_syncs(took).verdict == verdict


def test_a_disk_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    assert " a second, half within " in sync_rate(tmp_path, syncs=5).text
    assert list(tmp_path.iterdir()) == []
    assert sync_rate(tmp_path / "nowhere").verdict == "bad"
    assert " free" in free_space(tmp_path).text


def test_few_open_files_are_named_with_the_setting_they_bound() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        assert [finding.text for finding in open_files(Settings())] == ["no limit"]
        return
    (found,) = open_files(Settings(max_connections=hard * 2))
    assert (found.verdict, "LimitNOFILE" in found.text) == ("warning", True)
    (found,) = open_files(Settings(max_connections=1))
    assert found.verdict == "good"


def test_the_log_of_a_data_directory_is_looked_at(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert "will be made" in of(list(examine(Settings(data=str(data)))), "directory").text
    SqliteLog.open(data).close()
    found = list(examine(Settings(data=str(data))))
    assert of(found, "log").text.startswith("head 0, schema version ")
    data.chmod(0o755)
    assert of(list(examine(Settings(data=str(data)))), "directory").verdict == "warning"
    with closing(apsw.Connection(str(data / "log.db"))) as connection:
        connection.execute("UPDATE head SET status_updated_at = 9000000000000")
    assert "in the future" in of(list(examine(Settings(data=str(data)))), "log").text
    with closing(apsw.Connection(str(data / "log.db"))) as connection:
        connection.pragma("user_version", 99)
    assert of(list(examine(Settings(data=str(data)))), "log").verdict == "bad"


def test_the_command_ends_with_what_it_found(tmp_path: Path) -> None:
    done = unisono("doctor", "--data", str(tmp_path / "data"), "--json")
    assert done.exit_code == 0, done.output
    found = [msgspec.convert(json.loads(line), Finding) for line in done.output.splitlines()]
    assert {"version", "file system", "disk sync", "open files", "clock"} <= {each.subject for each in found}
    assert "\x1b" not in unisono("doctor", "--data", str(tmp_path / "data")).output, (
        "colours are for terminals"
    )
    refused = unisono("doctor", "--store", "postgresql://nobody@127.0.0.1:1/none")
    assert refused.exit_code == 1
    assert "bad      database" in refused.output
    wrong = unisono("doctor", env={"UNISONO_PROT": "1"})
    assert wrong.exit_code == 2
    assert "did you mean 'port'" in wrong.output
