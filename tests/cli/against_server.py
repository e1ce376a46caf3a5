"""Arguments of a command against a server, and what `submit` prints."""

from __future__ import annotations

from click.testing import Result

from tests.behaviour.server.harness import Server


def at(server: Server, part: str, client_id: str = "carol") -> list[str]:
    return ["--url", server.url, "--token", server.token(client_id), "--partition", part]


def committed(result: Result) -> list[int]:
    """The committed_ids that `submit` prints."""
    assert result.exit_code == 0, result.output
    return [int(line.split()[1]) for line in result.output.splitlines() if line.startswith("committed ")]
