"""Where results go has one name in all commands of `unisono lake`."""

from __future__ import annotations

import click

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
