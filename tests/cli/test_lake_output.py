"""Where results go has one name in all commands of `unisono lake`."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tests.commands import unisono
from unisono.cli.lake import COMMANDS, lake


def test_files_go_to_out_and_json_to_stdout() -> None:
    context = click.Context(lake)
    writing = set()
    for name in COMMANDS:
        command = lake.get_command(context, name)
        assert command is not None
        options = {option: parameter for parameter in command.params for option in parameter.opts}
        assert not {"--html", "--output", "--report", "--output-dir", "-o"} & set(options), name
        if (json := options.get("--json")) is not None:
            assert isinstance(json, click.Option)
            assert json.is_flag, name
        if (out := options.get("--out")) is not None:
            assert isinstance(out.type, click.Path)
            assert not out.type.file_okay, name
            writing.add(name)
    assert writing == {"audit", "import", "report", "revalidate", "run"}


@pytest.mark.parametrize(
    "command",
    [
        ["audit", "--lake", "none"],
        ["import", "none.jsonl"],
        ["report", "--lake", "none"],
        ["revalidate", "--lake", "none", "--model", "none"],
        ["run", "--lake", "none"],
    ],
    ids=lambda command: command[0],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else is looked at before it, and a place that can be written is left as it was."""
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("dangling").symlink_to("nowhere")
    for out, reason in (("file/below/out", "Not a directory"), ("dangling", "No such file or directory")):
        done = unisono("lake", *command, "--out", out)
        assert done.exit_code == 2
        assert f"{out} cannot be written: {reason}" in done.stderr, done.output
    done = unisono("lake", *command, "--out", "new/out")
    assert done.exit_code == 2
    assert "cannot be written" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"file", "dangling"}
