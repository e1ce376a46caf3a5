"""Seeds, replays, shrinking and small exhaustive runs.

    python -m tests.simulation.running --seed 7 --steps 400            one seed, with its findings
    python -m tests.simulation.running --seeds 1 5000                  many
    python -m tests.simulation.running --seed 7 --mutant a_broadcast_is_lost --shrink
    python -m tests.simulation.running --exhaustive 1                  every schedule with one deviation and one crash

Runs are exact for one PYTHONHASHSEED; the command sets it to 0 for itself.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import msgspec

from tests.simulation.mutants import applied
from tests.simulation.scheduler import Chooser, RandomChooser, RecordingChooser, ReplayChooser
from tests.simulation.world import simulated_world

STEPS = 200
MEMORY = Path("/dev/shm")


def findings_of(
    seed: int,
    steps: int = STEPS,
    *,
    mutant: str | None = None,
    chooser: Chooser | None = None,
    faults: int = 6,
    small: bool = False,
    digest: hashlib._Hash | None = None,
) -> list[str]:
    """What one run finds; a client that gets stuck, and an error of the product, count as findings."""
    directory = Path(tempfile.mkdtemp(prefix="simulation-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        with (
            simulated_world(
                directory, chooser or RandomChooser(seed), seed, faults=faults, small=small
            ) as world,
            applied(mutant) if mutant else nullcontext(),
        ):
            verdict = world.run(steps)
            if digest is not None:
                digest.update(msgspec.json.encode(world.records))
            return [f"{each.invariant}: {each.text} ({each.where})" for each in verdict.findings()]
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def shrunk(seed: int, steps: int, mutant: str | None = None) -> tuple[int, list[int]]:
    """Fewer steps, then fewer choices that differ from the first option, with something still found."""
    while steps > 10 and findings_of(seed, steps * 3 // 4, mutant=mutant):
        steps = steps * 3 // 4
    recording = RecordingChooser(RandomChooser(seed))
    findings_of(seed, steps, mutant=mutant, chooser=recording)
    choices = recording.taken
    size = len(choices) // 2
    while size:
        for start in range(0, len(choices), size):
            tried = [*choices[:start], *[0] * min(size, len(choices) - start), *choices[start + size :]]
            if tried != choices and findings_of(seed, steps, mutant=mutant, chooser=ReplayChooser(tried)):
                choices = tried
        size //= 2
    while choices and not choices[-1]:
        choices.pop()
    return steps, choices


class Exploration:
    """Every schedule of a small world with at most so many deviations from the first option, one crash included."""

    STEPS = 120

    def __init__(self, deviations: int, mutant: str | None = None, runs_max: int = sys.maxsize) -> None:
        self.deviations = deviations
        self.runs_max = runs_max
        self.mutant = mutant
        self.runs = 0

    def failures(self) -> Iterator[tuple[list[int], list[str]]]:
        """The choices of each run that finds something."""
        waiting: list[tuple[list[int], int]] = [([], self.deviations)]
        while waiting and self.runs < self.runs_max:
            prefix, left = waiting.pop()
            chooser = ReplayChooser(prefix)
            self.runs += 1
            found = findings_of(1, self.STEPS, mutant=self.mutant, chooser=chooser, faults=1, small=True)
            if found:
                yield prefix, found
            if left:
                waiting += [
                    ([*chooser.taken[:place], other], left - 1)
                    for place in range(len(prefix), len(chooser.options))
                    for other in range(1, chooser.options[place])
                ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", type=int, nargs=2, metavar=("FIRST", "LAST"))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--mutant")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--digest", action="store_true", help="of everything recorded, to compare two runs")
    parser.add_argument("--exhaustive", type=int, metavar="DEVIATIONS")
    given = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    gc.freeze()  # what is imported lives as long as this process
    if given.exhaustive is not None:
        exploration, failed = Exploration(given.exhaustive, given.mutant), 0
        for choices, found in exploration.failures():
            failed += 1
            print(f"choices {choices}:", *found[:5], sep="\n  ")  # noqa: T201
        print(f"{exploration.runs} schedules, {failed} with findings")  # noqa: T201
        return 1 if failed else 0
    first, last = given.seeds or (given.seed or 1, given.seed or 1)
    failed, began, digest = 0, time.monotonic(), hashlib.sha256()
    for seed in range(first, last + 1):
        if found := findings_of(seed, given.steps, mutant=given.mutant, digest=digest):
            failed += 1
            print(f"seed {seed}, {given.steps} steps:", *found[:10], sep="\n  ")  # noqa: T201
            if given.shrink:
                steps, choices = shrunk(seed, given.steps, given.mutant)
                print(f"  shrunk to {steps} steps, choices {choices}")  # noqa: T201
    if given.digest:
        print(f"digest {digest.hexdigest()}")  # noqa: T201
    runs, took_s = last + 1 - first, time.monotonic() - began
    print(f"{runs} runs of {given.steps} steps, {failed} with findings, {took_s:.1f} s")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-W", "ignore", "-m", "tests.simulation.running", *sys.argv[1:]],
            os.environ | {"PYTHONHASHSEED": "0"},
        )
    sys.exit(main(sys.argv[1:]))
