"""Who acts next: every choice of a simulation in one place, so that a run is a list of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

Step = Callable[[], None]


class Chooser(Protocol):
    """Chooses one of several options; the same choices give the same run."""

    def choose(self, options: int, weights: Sequence[float] | None = None) -> int: ...


class RandomChooser:
    """Chooses by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def choose(self, options: int, weights: Sequence[float] | None = None) -> int:
        if options == 1:
            return 0
        return self.random.choices(range(options), weights)[0]


class ReplayChooser:
    """Follows a list of choices, then takes the first option; remembers how many options there were."""

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = choices
        self.taken: list[int] = []
        self.options: list[int] = []

    def choose(self, options: int, weights: Sequence[float] | None = None) -> int:
        if options == 1:
            return 0
        place = len(self.taken)
        chosen = min(self._choices[place], options - 1) if place < len(self._choices) else 0
        self.taken.append(chosen)
        self.options.append(options)
        return chosen


class RecordingChooser:
    """Another chooser, with its choices remembered for a replay."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self.taken: list[int] = []

    def choose(self, options: int, weights: Sequence[float] | None = None) -> int:
        chosen = self._chooser.choose(options, weights)
        if options > 1:
            self.taken.append(chosen)
        return chosen
