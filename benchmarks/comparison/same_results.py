"""Whether the pipeline gives the results of another revision: states, snapshots, audits and reports, byte for byte.

The other revision makes the histories: sound ones, a pruned and an erased one, and one for each kind of damage that
an audit must find. Both revisions read copies of them.

    python -m benchmarks same --base REV [--events N]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.comparison.compare import run_in, worktree

ROOT = Path(__file__).parent.parent.parent
STEPS = Path(__file__).with_name("same_results_steps.py")
REPORTED = ("sound", "large", "pruned", "erased")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks same", description=__doc__)
    parser.add_argument("--base", required=True, metavar="REV")
    parser.add_argument("--events", type=int, default=30_000, help="of the larger history")
    chosen = parser.parse_args(arguments)
    with worktree(chosen.base) as base, tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        run_in(base, STEPS, "make", folder / "base", chosen.events)
        shutil.copytree(folder / "base", folder / "new")
        results = {}
        for name, tree in (("base", base), ("new", ROOT)):
            began = time.monotonic()
            run_in(tree, STEPS, "read", folder / name, folder / f"{name}.json")
            results[name] = json.loads((folder / f"{name}.json").read_text())
            for case in REPORTED:
                out = folder / f"{name}-{case}"
                run_in(
                    tree,
                    "-m",
                    "unisono",
                    "lake",
                    "report",
                    "--lake",
                    folder / name / case / "lake",
                    "--out",
                    out,
                )
                results[name][f"{case}: report"] = _report(out)
            print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    return _compare(results["base"], results["new"])


def _report(out: Path) -> dict[str, Any]:
    """The rows of all tables of a report; tables that only one revision has are compared as missing."""
    return {path.stem: pq.read_table(path).to_pylist() for path in sorted((out / "tables").glob("*.parquet"))}


def _compare(base: dict[str, Any], new: dict[str, Any]) -> int:
    wrong = 0
    for name in sorted(base.keys() | new.keys()):
        ours, theirs = _text(new.get(name)), _text(base.get(name))
        same = ours == theirs
        wrong += not same
        print(f"{'equal ' if same else 'OTHER '} {name} ({len(theirs)} bytes)")
        if not same:
            for left, right in _differences(base.get(name), new.get(name)):
                print(f"    base: {left[:300]}\n    new:  {right[:300]}")
    print(f"{len(base)} results, {wrong} of them differ")
    return 1 if wrong else 0


def _text(found: Any) -> str:
    return json.dumps(found, sort_keys=True, default=str)


def _differences(base: Any, new: Any, path: str = "") -> list[tuple[str, str]]:
    """The first differing parts, with where they are."""
    if isinstance(base, dict) and isinstance(new, dict):
        keys = sorted(base.keys() | new.keys())
        return [pair for key in keys for pair in _differences(base.get(key), new.get(key), f"{path}.{key}")][
            :8
        ]
    if isinstance(base, list) and isinstance(new, list) and len(base) == len(new):
        pairs = zip(base, new, strict=True)
        return [
            pair for number, (a, b) in enumerate(pairs) for pair in _differences(a, b, f"{path}[{number}]")
        ][:8]
    return [] if base == new else [(f"{path} {_text(base)}", f"{path} {_text(new)}")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
