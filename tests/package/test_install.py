"""The packages of `make dist`, installed into empty environments: everything runs without the clone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.package.building import ROOT, clone, run

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]

BARE = {
    name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "UNISONO", "VIRTUAL"))
}
INSTALL_S = 900


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` leaves in a clone."""
    tree = clone(tmp_path_factory.mktemp("clone"))
    run("make", "dist", f"PYTHON={sys.executable}", cwd=tree)
    return tree / "dist"


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel in an environment that has nothing else; the directory with its programs."""
    (wheel,) = dist.glob("*.whl")
    return install(str(wheel), tmp_path_factory.mktemp("wheel"))


def install(what: str, where: Path) -> Path:
    run(sys.executable, "-m", "venv", where, cwd=where.parent)
    shell(f"{where}/bin/python -m pip install --quiet '{what}'", where)
    return where / "bin"


def shell(line: str, cwd: Path) -> str:
    environment = BARE | {"PIP_CONSTRAINT": os.fspath(ROOT / "constraints.txt")}
    done = subprocess.run(
        line, shell=True, cwd=cwd, env=environment, capture_output=True, text=True, timeout=INSTALL_S
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def unisono(programs: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [programs / "unisono", *arguments], cwd=cwd, env=BARE, capture_output=True, text=True, timeout=120
    )


@contextmanager
def server(programs: Path, cwd: Path) -> Iterator[tuple[str, str]]:
    """A development server; its two addresses."""
    command = [str(programs / "unisono"), "serve", "--dev", "--port", "0", "--admin-port", "0"]
    process = subprocess.Popen(command, cwd=cwd, env=BARE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = re.fullmatch(r"unisono ready (\S+) admin (\S+)\n", process.stdout.readline())
        assert ready is not None
        yield ready[1], ready[2]
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


def try_out(programs: Path, cwd: Path) -> None:
    """Submit, tail, and the page of the demo with its parts."""
    with server(programs, cwd) as (url, admin):
        secret = ("--jwt-secret-file", "unisono-data/dev-secret")
        (cwd / "bob.jwt").write_text(
            unisono(programs, "token", *secret, "--client-id", "bob", cwd=cwd).stdout, encoding="utf-8"
        )
        where = ("--url", url, "--token", "@bob.jwt", "--partition", "p")
        note = ("--schema", "note.added", "--data", json.dumps({"id": "n1", "text": "milk"}))
        submitted = unisono(programs, "submit", *where, "--id", "e1", *note, cwd=cwd)
        assert submitted.stdout == "committed 1  e1\n", submitted.stderr
        seen = unisono(programs, "tail", *where, "--once", cwd=cwd)
        assert "note.added" in seen.stdout, seen.stderr
        for name, words in (("", "<title>"), ("client.js", "WebSocket"), ("demo.css", "{")):
            with urllib.request.urlopen(f"{admin}/demo/{name}", timeout=30) as page:
                assert words in page.read().decode(), name
    checked = unisono(programs, "check", "--quiet", "unisono-data", cwd=cwd)
    assert "sound (1 events, head 1)" in checked.stdout


def test_the_wheel_serves(installed: Path, tmp_path: Path) -> None:
    try_out(installed, tmp_path)
    version = unisono(installed, "--version", cwd=tmp_path).stdout
    assert version.startswith("unisono, version ")


def test_a_missing_extra_names_the_line_that_installs_it(installed: Path, tmp_path: Path) -> None:
    store = ("--store", "postgresql://nobody@127.0.0.1:1/none")
    (tmp_path / "secret").write_text("a secret of at least thirty-two bytes")
    refused = unisono(installed, "serve", *store, "--jwt-secret-file", "secret", cwd=tmp_path)
    assert refused.returncode == 2
    line = re.search(r"\S+ -m pip install 'unisono\[postgres\]'", refused.stderr)
    assert line is not None, refused.stderr
    shell(line[0], tmp_path)
    further = unisono(installed, "db", "status", *store, cwd=tmp_path)
    assert "pip install" not in further.stderr
    assert "127.0.0.1" in further.stderr


def test_the_source_archive_installs_and_serves(dist: Path, tmp_path: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    (tmp_path / "work").mkdir()
    try_out(install(str(archive), tmp_path / "env"), tmp_path / "work")


def test_the_wheel_has_the_pipeline_and_its_pages(installed: Path, tmp_path: Path) -> None:
    shell(f"{installed}/python -m pip install --quiet 'unisono[archive,pipeline,terminal]'", tmp_path)
    try_out(installed, tmp_path)
    shell(f"{installed}/unisono lake export --data unisono-data --lake lake --verify", tmp_path)
    shell(f"{installed}/unisono lake report --lake lake --out report", tmp_path)
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "<svg" in page or "<img" in page
