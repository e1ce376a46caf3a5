"""`make demo`, shorter: everything from the server to the report, in one go."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_demo_runs_to_its_pages() -> None:
    command = [sys.executable, str(ROOT / "tools" / "demo.py"), "--end", "--people", "9", "--seconds", "5"]
    done = subprocess.run([*command, "--ports", "0", "0"], capture_output=True, text=True, timeout=500)
    where = re.search(r"its files in (\S+)", done.stdout)
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        assert "everybody sees the same" in done.stdout
        committed = re.search(r"(\d+) committed", done.stdout)
        events = re.search(r"lake: events 1 to (\d+)", done.stdout)
        assert committed is not None
        assert events is not None
        assert committed[1] == events[1], "the lake has what was committed"
        assert re.search(r"http://127\.0\.0\.1:\d+/#token=\S+ +\(the console", done.stdout)
        for page in re.findall(r"file://(\S+)", done.stdout):
            assert "<svg" in Path(page).read_text(encoding="utf-8")
    finally:
        if where is not None:
            shutil.rmtree(where[1])
