"""`--master` takes what Spark takes, in all commands of `unisono lake`."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tests.commands import unisono
from unisono.cli.lake import COMMANDS, lake


def test_every_command_refuses_what_is_no_master() -> None:
    """As the option is read, so that a command which has nothing to do refuses it too."""
    context = click.Context(lake)
    refusing = set()
    for name in COMMANDS:
        command = lake.get_command(context, name)
        assert command is not None
        if any("--master" in parameter.opts for parameter in command.params):
            done = unisono("lake", name, "--master", "nonsense")
            assert done.exit_code == 2, name
            assert "'nonsense' is no master of Spark: write local, local[N]" in done.stderr, name
            refusing.add(name)
    assert {"export", "import", "run", "report"} <= refusing


@pytest.mark.parametrize(
    "master",
    [
        "", "Local", "local[", "local[x]", "local[0]", "local[2,x]", "local-cluster[1,1]", "spark://head",
        "spark:head:7077", "http://head:7077", "yarn-client", "sc://", "k8s://", "sc://head 15002",
    ],
)  # fmt: skip
def test_no_masters(master: str, tmp_path: Path) -> None:
    done = unisono("lake", "info", "--lake", str(tmp_path), "--master", master)
    assert f"{master!r} is no master of Spark" in done.stderr


@pytest.mark.parametrize(
    "master",
    [
        "local", "local[*]", "local[4]", "local[4,2]", "local[*, 3]", "local-cluster[2, 1, 1024]", "spark://head:7077",
        "spark://one:7077,two:7077", "spark://[::1]:7077", "yarn", "k8s://https://head:6443", "sc://head", "sc://head:15002",
        "sc://head:443/;use_ssl=true;token=t",
    ],
)  # fmt: skip
def test_masters(master: str, tmp_path: Path) -> None:
    done = unisono("lake", "info", "--lake", str(tmp_path), "--master", master)
    assert "there is no lake" in done.stderr
