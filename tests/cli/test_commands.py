"""The command `unisono`, as a person or a script uses it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import apsw
import click
import pytest

from tests.behaviour.server.harness import Server, new_id
from tests.cli.against_server import at, committed
from tests.commands import unisono
from tests.waiting import PATIENCE_S, until
from unisono import __version__
from unisono.cli.main import main
from unisono.samples import sample_model
from unisono.store.sqlite.files import LOG_FILE

UNISONO = Path(sys.executable).parent / "unisono"


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


# -- help ------------------------------------------------------------------------------------------------------


LAKE = (
    "export", "compact", "info", "snapshot", "state", "diff", "audit", "retain", "erase", "certificate", "import",
    "revalidate", "report", "views", "run",
)  # fmt: skip


def test_there_is_one_command_for_each_thing_to_do() -> None:
    assert [" ".join(path) for path, _ in commands(main)] == [
        "serve", "token", "tail", "submit", "history", "bench", "client", "access", "access list", "access reload",
        "access revoke", "connections", "kick", "console", "check", "doctor", "model", "model check",
        "model export", "model new", "model reload", "snapshot", "db",
        "db init", "db migrate", "db new-epoch", "db status", "copy", "backup", "restore", "verify-history", "lake",
        *(f"lake {name}" for name in LAKE),
    ]  # fmt: skip
    told = unisono("--version")
    assert told.exit_code == 0
    assert __version__ in told.output


@pytest.mark.parametrize("path", [(), *(path for path, _ in commands(main))], ids=" ".join)
def test_the_help_of_every_command_renders_and_mentions_each_option(path: tuple[str, ...]) -> None:
    command = dict(commands(main)).get(path, main)
    for flag in ("--help", "-h"):
        shown = unisono(*path, flag)
        assert shown.exit_code == 0
        assert shown.output.startswith("Usage: ")
    words = " ".join(shown.output.split())
    assert command.help is not None
    assert " ".join(command.help.split("\n\n")[0].split()) in words
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.name} says nothing of itself"
            for name in (*parameter.opts, *parameter.secondary_opts):
                assert name in words
        else:
            assert parameter.make_metavar(click.Context(command)) in words
    for name in command.commands if isinstance(command, click.Group) else ():
        assert name in words


# -- serve --dev -----------------------------------------------------------------------------------------------


class Dev:
    """`unisono serve --dev`, started by hand in a directory of one's own."""

    def __init__(self, place: Path, *program: str) -> None:
        self.place = place
        self.log = place / "log"
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*program, "serve", "--dev", "--port", "0", "--admin-port", "0"],
                cwd=place, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            )  # fmt: skip
        self.lines: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if " submit " in line:
                break
        self.tail, self.submit = (line.strip() for line in self.lines if line.startswith("  "))

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def in_terminal(command: str, place: Path) -> subprocess.Popen[str]:
    """A printed command, pasted into a shell, where ctrl-c works even if the tests run in the background."""
    return subprocess.Popen(
        ["sh", "-c", f"exec {command}"],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


def test_a_newcomer_can_paste_what_serve_dev_prints(tmp_path: Path) -> None:
    dev = Dev(tmp_path, str(UNISONO))
    try:
        url = re.fullmatch(r"unisono ready (ws://127\.0\.0\.1:\d+/sync) admin http://\S+", dev.lines[0])
        assert url is not None
        assert dev.tail.count(url[1]) == dev.submit.count(url[1]) == 1

        with in_terminal(dev.tail, tmp_path) as tail:
            assert tail.stdout is not None
            assert "0 events so far" in tail.stdout.readline()
            with in_terminal(dev.submit, tmp_path) as submit:
                told, complaint = submit.communicate(timeout=PATIENCE_S)
            assert (submit.returncode, complaint) == (0, "")
            assert re.fullmatch(r"committed 1  \S+\n", told)
            line = tail.stdout.readline()
            assert " bob " in line
            assert "[welcome]" in line
            assert '"title": "Hello"' in line
            tail.send_signal(signal.SIGINT)
            assert tail.wait(timeout=PATIENCE_S) == 0

        secret = tmp_path / "unisono-data" / "dev-secret"
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        assert secret.read_text() not in "\n".join(dev.lines) + dev.log.read_text()
        old_token = shlex.split(dev.tail)[shlex.split(dev.tail).index("--token") + 1]
    finally:
        assert dev.end() == 0

    # Started another way: other ports, the same secret and the same log, and commands that fit.
    again = Dev(tmp_path, sys.executable, "-m", "unisono")
    try:
        words = shlex.split(again.tail)
        words[words.index("--token") + 1] = old_token
        shown = subprocess.run(
            [*words, "--once", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert shown.returncode == 0, shown.stderr
        assert [json.loads(line)["committed_id"] for line in shown.stdout.splitlines()] == [1]
    finally:
        assert again.end() == 0


# -- check -----------------------------------------------------------------------------------------------------


@pytest.mark.req("DUR-01")
def test_check_tells_sound_from_damaged_from_no_log(server: Server, part: str, tmp_path: Path) -> None:
    committed(unisono("submit", *at(server, part), "--set", "settings.a=1"))
    sound = unisono("check", str(server.data))
    assert sound.exit_code == 0, sound.output
    assert f"{server.data}: sound (" in sound.output

    copy = tmp_path / "copy"
    copy.mkdir()
    source = apsw.Connection(str(server.data / LOG_FILE), flags=apsw.SQLITE_OPEN_READONLY)
    source.execute("VACUUM INTO ?", (str(copy / LOG_FILE),))
    source.close()
    assert unisono("check", "--quiet", str(copy)).exit_code == 0
    damage = apsw.Connection(str(copy / LOG_FILE))
    damage.execute("UPDATE events SET event = CAST('{}' AS BLOB) WHERE committed_id = 1")
    damage.close()
    damaged = unisono("check", "--quiet", str(copy))
    assert damaged.exit_code == 1
    assert "NOT SOUND" in damaged.output
    assert "hash: event 1: " in damaged.output

    (copy / LOG_FILE).write_text("no longer a database, but long enough to be looked at" * 100)
    ruined = unisono("check", "--quiet", str(copy))
    assert ruined.exit_code == 1
    assert "not a database" in ruined.output

    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", tmp_path / "none", copy / LOG_FILE):
        refused = unisono("check", str(place))
        assert refused.exit_code == 2, refused.output
        assert str(place) in refused.output


# -- model and snapshot ----------------------------------------------------------------------------------------


def test_model_check_on_the_sample_and_on_a_broken_one(tmp_path: Path) -> None:
    fine = unisono("model", "check", str(sample_model()))
    assert fine.exit_code == 0, fine.output
    assert fine.output.rstrip().endswith("\nok")
    assert "outline" in fine.output
    assert "warnings" not in fine.output
    assert "note.removed     1 accepted, 0 refused" in fine.output

    events = tmp_path / "events.jsonl"
    note = {"type": "event", "payload": {"schema": "note.added", "data": {"id": "n1", "text": "Hi"}}}
    events.write_text(json.dumps(note) + "\n")
    tried = unisono("model", "check", str(sample_model()), "--events", str(events))
    assert tried.exit_code == 0, tried.output
    assert "1 accepted, 0 refused" in tried.output
    events.write_text((json.dumps(note) + "\n") * 2)
    refused = unisono("model", "check", str(sample_model()), "--events", str(events))
    assert refused.exit_code == 1
    assert "there is already a note of this id" in refused.output

    broken = shutil.copytree(sample_model(), tmp_path / "broken")
    (broken / "schemas" / "note.added.json").write_text('{"type": "nothing"}')
    told = unisono("model", "check", str(broken))
    assert told.exit_code == 1
    assert "note.added" in told.output
    assert told.output.rstrip().endswith("not ok")
    assert unisono("model", "check", str(tmp_path / "none")).exit_code == 1


def test_snapshot_has_a_running_server_write_one(server: Server, part: str, tmp_path: Path) -> None:
    ids = committed(unisono("submit", *at(server, part), "--set", "settings.theme=dark"))
    data = ["--data", str(server.data)]
    told = unisono("snapshot", *data, "--partition", part, "--partition", f"{part}/empty")
    assert told.exit_code == 0, told.output
    first, second = told.output.splitlines()
    match = re.fullmatch(rf"{part}: state at (\d+), (\d+) bytes", first)
    assert match is not None
    assert int(match[1]) >= ids[0]
    assert int(match[2]) > 10
    assert second.startswith(f"{part}/empty: ")
    assert unisono("check", "--quiet", str(server.data)).exit_code == 0

    nobody = unisono("snapshot", "--data", str(tmp_path), "--partition", part)
    assert nobody.exit_code == 1
    assert f"no server runs on {tmp_path}" in nobody.output


@pytest.mark.req("MODEL-02")
def test_model_reload_hands_a_running_server_a_newer_model(server: Server) -> None:
    data = ["--data", str(server.data)]
    manifest = server.data.parent / "model" / "model.toml"
    refused = unisono("model", "reload", *data)
    assert refused.exit_code == 1
    assert "model_version 1 is not above 1" in refused.output
    manifest.write_text(manifest.read_text().replace("model_version = 1", "model_version = 2"))
    with server.client("reloader", profile="canonical") as peer:
        done = unisono("model", "reload", *data)
        assert done.exit_code == 0, done.output
        assert "model_version 1 → 2" in done.output
        assert peer.expect("version_changed") == {"old_model_version": 1, "new_model_version": 2}
    elsewhere = unisono("model", "reload", *data, "--model", "nowhere")
    assert elsewhere.exit_code == 1
    assert "nowhere" in elsewhere.output


# -- the server's other faces ----------------------------------------------------------------------------------


def test_the_log_is_one_json_object_per_line(server: Server) -> None:
    assert unisono("model", "reload", "--data", str(server.data), "--model", "nowhere").exit_code == 1
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    for line in lines:
        assert {"time", "level", "logger", "process", "pid", "message"} <= set(line)
    warning = next(line for line in lines if "nowhere" in line["message"])
    assert warning["level"] == "warning"
    assert warning["logger"] == "unisono.authority"
    assert (warning["process"], warning["pid"]) == ("authority", next(iter(server.children())))


def test_the_admin_port_tells_health_and_refuses_strangers_orders(server: Server) -> None:
    assert server.get("/healthz") == "ok\n"
    until(server.is_ready, "a process does not answer")
    admin_file = server.data / "admin.json"
    assert stat.S_IMODE(admin_file.stat().st_mode) == 0o600
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        order = Request(f"{server.admin}/orders/reload", method="POST", headers=headers)
        with pytest.raises(HTTPError) as refused:
            urlopen(order, timeout=PATIENCE_S)
        assert refused.value.code == 401
        refused.value.close()


def test_the_metrics_have_every_family_an_operator_needs(server: Server, part: str) -> None:
    with server.client(f"{part}-a") as a, server.client(f"{part}-b") as b:
        b.subscribe(part)
        event = {"type": "set", "payload": {"target": "settings.a", "value": 1}}
        before = server.metric("unisono_commits_total")
        a.commit([part], event)
        b.expect("event_broadcast")
        a.submit({"id": new_id(), "partitions": [part], "event": {"type": "sing", "payload": {}}})
        a.send("sing", {})
        a.expect_error("bad_request")
        b.send("disconnect", {})
        b.expect_close(1000)
        assert server.metric("unisono_commits_total") == before + 1
        assert server.metric("unisono_connections") >= 1
        assert server.metric("unisono_connections_opened_total") >= 2
        assert server.metric("unisono_group_events_count") >= 2
        assert server.metric("unisono_group_events_bucket", le="+Inf") >= 2
        assert server.metric("unisono_commit_seconds_sum") > 0
        assert server.metric("unisono_broadcasts_total") >= 1
        assert server.metric("unisono_sync_pages_total") >= 0
        assert server.metric("unisono_rejections_total", reason="validation_failed") >= 1
        assert server.metric("unisono_errors_total", code="bad_request") >= 1
        assert server.metric("unisono_closes_total", code="1000") >= 1
        assert server.metric("unisono_last_committed_id", process="authority") >= 1
    families = set(
        re.findall(r"^# TYPE (\S+) (?:counter|gauge|histogram)$", server.get("/metrics"), re.MULTILINE)
    )
    assert families >= {
        "unisono_connections", "unisono_commits_total", "unisono_group_events", "unisono_commit_seconds",
        "unisono_broadcasts_total", "unisono_sync_pages_total", "unisono_rejections_total",
        "unisono_closes_total", "unisono_queue_requests", "unisono_parked_requests",
        "unisono_in_flight_items", "unisono_in_flight_bytes",
    }  # fmt: skip
    assert os.fspath(server.data) not in server.get("/metrics")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["srve"], "there is no command 'srve'; did you mean 'serve'?"),
        (["zzz"], "there is no command 'zzz'; there are serve, token, tail,"),
        (["db", "mirgate"], "did you mean 'migrate'?"),
        (["model", "chek"], "did you mean 'check'?"),
        (["lake", "exprot"], "did you mean 'export'?"),
    ],
)
def test_a_mistyped_command_is_answered_with_the_nearest(arguments: list[str], words: str) -> None:
    refused = unisono(*arguments)
    assert refused.exit_code == 2
    assert words in refused.output
