"""The files under deploy/ fit the program and each other.

What can be run here is run (systemd-analyze, kubectl, docker compose, haproxy, where they are installed); for the
rest every option, variable, port, name and path is looked up where it is defined.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ports import free_port
from tests.waiting import until
from unisono.cli.backup import backup
from unisono.cli.db import db
from unisono.cli.lake import lake
from unisono.cli.serve import serve
from unisono.cli.setting_fields import FIELDS
from unisono.cli.settings import load
from unisono.cli.store_option import EXIT_UNUSABLE
from unisono.config import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE_FILES = ("compose.yaml", "compose.embedded.yaml")


def settings_of(command: Sequence[str], environment: Mapping[str, str], file: Path | None = None) -> Settings:
    """The settings that `unisono serve` would have; fails as it would on anything it does not know."""
    assert command[0] == "serve"
    context = serve.make_context("serve", list(command[1:]))
    given = {name: value for name, value in context.params.items() if value is not None and name in FIELDS}
    return load(file, {key: str(value) for key, value in environment.items()}, given)


def db_commands(line: str) -> list[list[str]]:
    """The `unisono db` commands of a shell line, each understood by the program."""
    commands = [shlex.split(part) for part in line.split("&&")]
    for command in commands:
        assert command[:2] == ["unisono", "db"], command
        subcommand = db.commands[command[2]]
        subcommand.make_context(command[2], [*command[3:], "--store", "postgresql://x/y"])
    return commands


# The image


def image() -> tuple[dict[str, str], str]:
    """The variables that the image sets, and its text."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    block = re.search(r"^ENV ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    assert block is not None
    variables = dict(pair.split("=", 1) for pair in shlex.split(block[1].replace("\\\n", " ")))
    return variables, text


def test_the_image_is_made_of_what_there_is() -> None:
    variables, text = image()
    for names in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for name in names.split():
            assert (ROOT / name).exists(), name
    settings = settings_of(["serve"], variables)
    assert (settings.host, settings.data) == ("0.0.0.0", "/var/lib/unisono")
    exposed = re.search(r"^EXPOSE (.+)$", text, re.MULTILINE)
    assert exposed is not None
    assert exposed[1].split() == [str(settings.port), str(settings.admin_port)]
    assert f"127.0.0.1:{settings.admin_port}/readyz" in text


def test_a_linter_finds_nothing_in_the_image() -> None:
    program = Path(sys.executable).with_name("hadolint")
    outcome = subprocess.run([program, DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout


def test_the_build_is_sent_what_the_image_copies() -> None:
    _, text = image()
    copied = {
        name
        for names in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
        for name in names.split()
    }
    listed = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert listed[0] == "*"
    assert {name.removeprefix("!") for name in listed if name.startswith("!")} == copied


def test_the_images_command_starts_a_server_that_its_health_check_finds(tmp_path: Path) -> None:
    """The container without its walls: the variables, the command of the embedded compose file, the health check."""
    variables, text = image()
    ports = {"UNISONO_PORT": str(free_port()), "UNISONO_ADMIN_PORT": str(free_port())}
    environment = (
        os.environ | variables | ports | {"UNISONO_DATA": str(tmp_path / "data"), "PATH": os.environ["PATH"]}
    )
    (tmp_path / "secret").write_text("a secret of at least thirty-two bytes")
    service = compose("compose.embedded.yaml")["services"]["server"]
    command = [
        word.replace("/run/secrets/jwt-secret", str(tmp_path / "secret")) for word in service["command"]
    ]
    check = re.search(r"^HEALTHCHECK .* CMD (\[.+\])$", text, re.MULTILINE)
    assert check is not None
    _, *arguments = json.loads(check[1].replace("8041", ports["UNISONO_ADMIN_PORT"]))
    asked = [sys.executable, *arguments]
    assert subprocess.run(asked, capture_output=True).returncode != 0, "nobody listens yet"
    server = subprocess.Popen(
        [sys.executable, "-m", "unisono", *command], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("unisono ready ws://0.0.0.0:")
        until(lambda: subprocess.run(asked, capture_output=True).returncode == 0, "the check finds no server")
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert server.returncode == 0


# Compose


def compose(name: str = "compose.yaml") -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))
    return loaded


def test_the_embedded_compose_file_starts_one_server_that_keeps_its_log() -> None:
    loaded = compose("compose.embedded.yaml")
    (service,) = loaded["services"].values()
    settings = settings_of(service["command"], image()[0])
    assert settings.store is None
    assert settings.jwt_secret_file == "/run/secrets/jwt-secret"
    assert service["volumes"] == [f"data:{settings.data}"]
    assert service["ports"] == [f"127.0.0.1:{settings.port}:{settings.port}"]
    assert (
        int(service["stop_grace_period"].removesuffix("s"))
        > 2 * settings.drain_timeout_s + settings.close_grace_s
    )


def test_compose_starts_two_nodes_of_one_log() -> None:
    services = compose()["services"]
    found = [
        settings_of(service["command"], image()[0] | service["environment"])
        for name, service in services.items()
        if name.startswith("node-")
    ]
    assert [settings.node_name for settings in found] == ["a", "b"]
    assert {settings.store for settings in found} == {"postgresql://unisono_node@postgres:5432/unisono"}
    assert {settings.jwt_secret_file for settings in found} == {"/run/secrets/jwt-secret"}
    commands = db_commands(services["init"]["command"][0])
    assert [command[2] for command in commands] == ["init", "migrate"]
    assert services["init"]["environment"]["UNISONO_STORE"].startswith("postgresql://unisono_owner@postgres")
    assert services["postgres"]["environment"]["POSTGRES_USER"] == "unisono_owner"


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_compose_names_only_what_it_defines(file: str) -> None:
    loaded = compose(file)
    for service in loaded["services"].values():
        for name in service.get("depends_on", ()):
            assert name in loaded["services"]
        assert set(service.get("secrets", ())) <= set(loaded["secrets"])
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DEPLOY / source).is_file() if source.startswith("./") else source in loaded["volumes"]
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_the_cluster_makes_the_role_of_its_nodes() -> None:
    assert "NODE_PASSWORD" in compose()["services"]["postgres"]["environment"]
    assert subprocess.run(["sh", "-n", DEPLOY / "roles.sh"]).returncode == 0


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_docker_reads_the_compose_file(file: str) -> None:
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode
    ):
        return  # the checks above stand alone; docker compose adds its own opinion where it is installed
    environment = os.environ | {"OWNER_PASSWORD": "x", "NODE_PASSWORD": "y"}
    command = ["docker", "compose", "-f", str(DEPLOY / file), "config", "--quiet"]
    outcome = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert outcome.returncode == 0, outcome.stderr


# Load balancers


def test_the_load_balancers_lead_to_the_nodes() -> None:
    settings = settings_of(["serve"], image()[0])
    nodes = {name for name in compose()["services"] if name.startswith("node-")}
    haproxy = (DEPLOY / "haproxy.cfg").read_text(encoding="utf-8")
    servers = dict(re.findall(r"^\s+server \w+ ([\w-]+):(\d+)$", haproxy, re.MULTILINE))
    assert servers == {node: str(settings.port) for node in nodes}
    assert f"check port {settings.admin_port} " in haproxy
    assert "GET /readyz" in haproxy
    nginx = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    servers = dict(re.findall(r"^\s+server ([\w-]+):(\d+) ", nginx, re.MULTILINE))
    assert servers == {node: str(settings.port) for node in nodes}
    assert nginx.count("{") == nginx.count("}")
    for idle in (
        *re.findall(r"timeout (?:tunnel|client|server) (\d+)s", haproxy),
        *re.findall(r"read_timeout (\d+)s", nginx),
    ):
        assert int(idle) > 2 * settings.heartbeat_timeout_s
    port = re.search(r"bind :(\d+)", haproxy)
    assert port is not None
    assert compose()["services"]["balancer"]["ports"] == [f"127.0.0.1:{port[1]}:{port[1]}"]


def test_haproxy_reads_its_file() -> None:
    if shutil.which("haproxy") is None:
        return  # the checks above stand alone; haproxy adds its own opinion where it is installed
    outcome = subprocess.run(["haproxy", "-c", "-f", DEPLOY / "haproxy.cfg"], capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr


UNITS = ("unisono.service", "unisono-pipeline.service", "unisono-backup.service")


def unit(name: str) -> dict[str, list[str]]:
    text = (DEPLOY / name).read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def test_the_unit_starts_a_server_with_its_file() -> None:
    found = unit("unisono.service")
    command = shlex.split(found["ExecStart"][0])
    assert Path(command[0]).name == "unisono"
    variables = dict(entry.split("=", 1) for entry in found["Environment"])
    assert variables["UNISONO_CONFIG"] == "/etc/unisono/unisono.toml"
    settings = settings_of(command[1:], variables, DEPLOY / "unisono.toml")
    assert settings.data == f"/var/lib/{found['StateDirectory'][0]}"
    worst_s = 2 * settings.drain_timeout_s + settings.close_grace_s
    assert int(found["TimeoutStopSec"][0].removesuffix("s")) > worst_s
    assert found["Restart"] == ["on-failure"]
    assert found["RestartPreventExitStatus"] == [str(EXIT_UNUSABLE)]


def test_the_pipelines_unit_works_on_the_servers_log() -> None:
    server, found = unit("unisono.service"), unit("unisono-pipeline.service")
    program, group, *command = shlex.split(found["ExecStart"][0])
    assert (program, group) == (shlex.split(server["ExecStart"][0])[0], "lake")
    context = lake.make_context("lake", command)
    with context:
        name, run, arguments = lake.resolve_command(context, command)
    assert run is not None
    asked = run.make_context(name, arguments).params
    directories = [f"/var/lib/{name}" for name in found["StateDirectory"][0].split()]
    assert [str(asked["data"]), asked["lake"]] == directories
    assert server["StateDirectory"][0] in found["StateDirectory"][0].split()
    assert (found["User"], found["KillMode"]) == (server["User"], ["mixed"])


def test_the_backup_unit_backs_up_the_servers_log() -> None:
    server, found = unit("unisono.service"), unit("unisono-backup.service")
    program, name, *arguments = shlex.split(found["ExecStart"][0])
    assert (program, name) == (shlex.split(server["ExecStart"][0])[0], "backup")
    asked = backup.make_context(name, arguments).params
    directories = [f"/var/lib/{directory}" for directory in found["StateDirectory"][0].split()]
    assert [str(asked["data"]), str(asked["target"])] == directories
    assert found["User"] == server["User"]


@pytest.mark.parametrize("name", UNITS)
def test_systemd_reads_the_unit(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        return  # the checks above stand alone; systemd-analyze adds its own opinion where it is installed
    text = (DEPLOY / name).read_text(encoding="utf-8")
    program = str(Path(sys.executable).parent / "unisono")
    (tmp_path / name).write_text(text.replace("/opt/unisono/bin/unisono", program), encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=60)
    complaints = [line for line in outcome.stderr.splitlines() if name in line]
    assert complaints == []
