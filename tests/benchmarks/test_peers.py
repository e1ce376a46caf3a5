"""The peers' drivers: each started, written to, read back and stopped, where it is installed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from benchmarks.comparison import works
from benchmarks.comparison.compare import worktree
from benchmarks.comparison.workloads import JUDGING, OPEN, all_systems
from benchmarks.peers.system import HERE, ROOT, System, tree

PEERS = [system for name, system in all_systems().items() if name not in (OPEN, JUDGING)]


@pytest.mark.soak
@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_does_what_it_is_measured_for(peer: System, tmp_path: Path) -> None:
    if (lacking := peer.missing()) is not None:
        pytest.skip(f"{peer.name}: {lacking}")
    assert re.match(r"\d+\.\d+", peer.version())
    peer.start(tmp_path / "data")
    process = peer.process
    assert process is not None
    try:
        assert peer.memory_bytes() > 0
        if "submit" in peer.works:
            assert works.submit(peer, 2, 1, 2).rate > 0
            assert works.submit(peer, 2, 100, 5).rate > 0
        if "read" in peer.works:
            works.fill(peer, [works.DENSE_TOPIC], 500)
            assert works.read(peer, peer.whole(works.DENSE_TOPIC), 2, 2).rate > 0
        if "listen" in peer.works:
            assert works.fan_out(peer, 5, 2).rate > 0
        if "connect" in peer.works:
            assert works.opening(peer, 2).rate > 0
    finally:
        peer.stop()
    assert process.poll() is not None


def test_the_peers_have_exact_versions_from_no_named_host() -> None:
    manifest = json.loads((HERE / "package.json").read_text())
    wanted = manifest["dependencies"] | manifest["optionalDependencies"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in wanted.values())
    lock = (HERE / "package-lock.json").read_text()
    assert '"resolved"' not in lock
    locked = json.loads(lock)["packages"]
    assert {name: locked[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    pins = [line for line in (HERE / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    assert pins
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", pin) for pin in pins)


def test_another_revision_stands_beside_this_tree_for_a_while() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    with worktree("HEAD") as folder:
        assert (folder / "src" / "unisono" / "__init__.py").exists()
    assert not folder.exists()
    with pytest.raises(SystemExit, match="no worktree of no-such-revision"), worktree("no-such-revision"):
        pass


def test_a_tree_of_processes_has_its_root() -> None:
    assert os.getpid() in tree(os.getpid())
