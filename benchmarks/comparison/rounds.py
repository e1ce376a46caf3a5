"""Interleaved rounds: each contender in turn, to and fro, so that a slow minute is shared by all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import msgspec

from benchmarks.comparison.measure import GeneratorFailed, Sample
from benchmarks.comparison.results import Row, Table, Unit

NOTE_LETTERS_MAX = 120


class Contender(msgspec.Struct, frozen=True):
    """`run` measures once; its argument is the number of the round."""

    name: str
    run: Callable[[int], Sample]


def play(key: str, title: str, unit: Unit, contenders: Sequence[Contender], rounds: int) -> Table:
    """Contenders that fail once are left out from then on; the others go on."""
    say(f"{title}: {', '.join(one.name for one in contenders)}")
    samples: dict[str, list[Sample]] = {one.name: [] for one in contenders}
    notes: dict[str, str] = {}
    for number in range(rounds):
        for one in contenders if number % 2 == 0 else reversed(contenders):
            if one.name in notes:
                continue
            try:
                samples[one.name].append(one.run(number))
            except (GeneratorFailed, OSError) as error:
                said = str(error).splitlines()[-1] if str(error) else type(error).__name__
                notes[one.name] = f"failed: {said[:NOTE_LETTERS_MAX]}"
                say(f"  {one.name} {notes[one.name]}")
        say("  " + "   ".join(f"{name} {found[-1].rate:,.0f}" for name, found in samples.items() if found))
    rows = [Row(one.name, samples[one.name], notes.get(one.name, "")) for one in contenders]
    return Table(key, title, unit, rows)


def say(line: str) -> None:
    """Progress goes to stderr; stdout has the result."""
    print(line, file=sys.stderr, flush=True)
