"""`unisono model check`: a model tried on events in processes of their own, and whether it always does the same."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import zip_longest
from math import ceil
from pathlib import Path
from typing import Any, Final

import msgspec

from unisono.cli.model_trial_process import LogRequest, TrialAnswer, TrialRequest
from unisono.config import Settings
from unisono.display import shorten
from unisono.model.diff import JsonDifference, differences
from unisono.model.lint import ModelCheckReport
from unisono.model.registry import ModelProblem
from unisono.model.replay import Review
from unisono.model.trials import Mark, Probe, TrialRun, place
from unisono.node.model_review import ReviewFailed, ReviewProgress, process_lines

SEEDS: Final = ("1", "2", "3")
"""Of runs over example events, beside the first with 0: a set of two strings keeps its order in half of them."""

SHIFT_S: Final = 400 * 86_400 + 5 * 3_600
"""How far off the clock of the other runs is: another year, another hour."""

RUN: Final = "unisono.cli.model_trial_process"
PROBES: Final = 400
"""Places at which two runs are compared at a time; each costs a copy of all states."""

SILENCE_S: Final = 30.0
"""More than a rule's time without a word: the process cannot even watch itself."""

NOT_DETERMINISTIC: Final = (
    "is not deterministic: {what}. A rule may use the state and the event only: no clock, no random numbers, "
    "no files, no order of a set, nothing it remembers"
)


class TrialFailed(Exception):
    """The model could not be tried; the text says why."""


class Trials:
    """Runs of one model, each a process."""

    def __init__(
        self, model: Path, timeout_s: float, tell: Callable[[ReviewProgress], None] = lambda _: None
    ) -> None:
        self._model = str(model.absolute())
        self._timeout_s = timeout_s
        self._tell = tell

    async def first(self, **what: Any) -> TrialAnswer:
        return await self._run("0", shift=False, **what)

    async def other(self, seed: str, **what: Any) -> TrialAnswer:
        """A run that a deterministic model cannot tell from the first."""
        return await self._run(seed, shift=True, **what)

    async def _run(self, seed: str, *, shift: bool, **what: Any) -> TrialAnswer:
        request = TrialRequest(self._model, self._timeout_s, **what)
        if shift:
            request = msgspec.structs.replace(request, shift_s=SHIFT_S, elsewhere=True)
        decode = msgspec.json.Decoder(TrialAnswer).decode
        environment = {"PYTHONHASHSEED": seed, "TZ": "Etc/GMT-11" if shift else "UTC"}
        silence_s = self._timeout_s + SILENCE_S
        try:
            async with contextlib.aclosing(
                process_lines(RUN, msgspec.json.encode(request), silence_s, **environment)
            ) as lines:
                async for line in lines:
                    answer = decode(line)
                    if answer.error:
                        raise TrialFailed(answer.error)
                    if (answer.report or answer.review or answer.twin) is not None:
                        return answer
                    if answer.progress is not None:
                        self._tell(answer.progress)
        except ReviewFailed as error:
            raise TrialFailed(str(error)) from None
        raise TrialFailed("the process that runs the rules ended without a result")

    # -- example events ----------------------------------------------------------------------------------------

    async def stories(self, files: Sequence[tuple[str, Path]]) -> ModelCheckReport:
        """Lint the model and try it on files of events; the report tells if other runs come to something else."""
        named = [(name, str(path.absolute())) for name, path in files]
        probe = Probe(0, PROBES)
        answer = await self.first(stories=named, probe=probe)
        report = answer.report
        assert report is not None
        if report.problems or not named:
            return report
        others = await asyncio.gather(*(self.other(seed, stories=named, probe=probe) for seed in SEEDS))
        for seed, answered in zip(SEEDS, others, strict=True):
            other = answered.report
            assert other is not None
            pairs = [*zip(files, report.stories, other.stories, strict=True)]
            different = next((file for file, one, two in pairs if _differs(one.marks, two.marks)), None)
            if different is not None:
                report.problems.append(await self._story_problem(different, seed, report))
                break
        return report

    async def _story_problem(
        self, file: tuple[str, Path], seed: str, report: ModelCheckReport
    ) -> ModelProblem:
        name, path = file

        async def probe(probe: Probe) -> tuple[list[Mark], list[Mark]]:
            what: dict[str, Any] = {"stories": [(name, str(path.absolute()))], "probe": probe}
            answers = await asyncio.gather(self.first(**what), self.other(seed, **what))
            stories = [answer.report.stories[0] for answer in answers if answer.report is not None]
            return stories[0].marks, stories[1].marks

        story: TrialRun = next(story for story in report.stories if story.name == name)
        found = await narrow(story.marks[-1].place, probe)
        if found is None:
            return ModelProblem(
                name, "", NOT_DETERMINISTIC.format(what="its runs differ, and not always at the same line")
            )
        one, two = found
        rules = report.rules.get(one.kind, ["the model"])
        named = " or ".join(rules) if one.refused != two.refused else rules[-1]
        what = f"{named} ({one.kind}) came to {difference(one, two)}"
        return ModelProblem(place(name, one.place), "", NOT_DETERMINISTIC.format(what=what))

    # -- a log -------------------------------------------------------------------------------------------------

    async def log(self, settings: Settings, upto: int) -> tuple[Review, list[ModelProblem]]:
        """What the model makes of a log, beside the model in force there; and whether another run differs."""
        with tempfile.TemporaryDirectory(prefix="unisono-check-") as folder:
            paths = [Path(folder, name) for name in ("one", "two")]
            requests = [
                LogRequest(settings, upto, compare=number == 0, digests=str(path))
                for number, path in enumerate(paths)
            ]
            one, _ = await asyncio.gather(self.first(log=requests[0]), self.other(SEEDS[0], log=requests[1]))
            assert one.review is not None
            different = _first_difference(*paths)
        if different is None:
            return one.review, []
        return one.review, [await self._log_problem(settings, upto, *different)]

    async def _log_problem(self, settings: Settings, upto: int, partition: str, events: int) -> ModelProblem:
        async def probe(probe: Probe) -> tuple[list[Mark], list[Mark]]:
            request = LogRequest(settings, upto, partition=partition)
            one = await self.first(log=request, probe=probe)
            two = await self.other(SEEDS[0], log=request, probe=probe)
            return one.marks, two.marks

        found = await narrow(events, probe)
        if found is None:
            what = f"two runs over {partition!r} differ, and not always at the same event"
            return ModelProblem("log", "", NOT_DETERMINISTIC.format(what=what))
        what = f"the state came to {difference(*found)}"
        return ModelProblem("log", found[0].kind, NOT_DETERMINISTIC.format(what=what))

    # -- reducers in JavaScript --------------------------------------------------------------------------------

    async def javascript(
        self,
        functions: Path,
        files: Sequence[tuple[str, Path]],
        log: LogRequest | None,
        report: ModelCheckReport,
    ) -> None:
        """Add to the report whether reducers in JavaScript come to the same states."""
        paths = [(name, str(path.absolute())) for name, path in [*files, ("", functions)]]
        answer = await self.first(stories=paths[:-1], log=log, javascript=paths[-1][1])
        twin = answer.twin
        assert twin is not None
        for schema in twin.missing:
            report.problems.append(
                ModelProblem(functions.name, schema, "has no function here, and is reduced in Python")
            )
        if twin.difference:
            report.problems.append(ModelProblem(functions.name, "", twin.difference))
        elif not twin.missing:
            counted = f"{twin.events:,} event(s) in {twin.partitions:,} partition(s)"
            report.sections.append([f"{functions.name}: the same states, {counted}"])

    async def state(self, settings: Settings, upto: int, partition: str) -> Any:
        """The state of one partition of a log."""
        answer = await self.first(log=LogRequest(settings, upto, partition=partition))
        return answer.states.get(partition)


async def narrow(
    last: int, probe: Callable[[Probe], Awaitable[tuple[list[Mark], list[Mark]]]]
) -> tuple[Mark, Mark] | None:
    """The first place up to `last` at which two runs differ, looked at ever closer; None if they differ nowhere."""
    first = 0
    while True:
        every = max(1, ceil((last - first) / PROBES))
        ones, others = await probe(Probe(first, last, every))
        at = next(
            (one.place for one, two in zip(ones, others, strict=False) if one.digest != two.digest), None
        )
        if at is None:
            return None
        if every == 1:
            break
        first, last = max(first, at - every), at
    ones, others = await probe(Probe(at - 1, at, 1, states=True))
    pairs = [(one, two) for one, two in zip(ones, others, strict=False) if one.place == at]
    return pairs[0] if pairs else None


def difference(one: Mark, two: Mark) -> str:
    """What differs between two runs at one place, in words."""
    if one.refused != two.refused:
        verdicts = [
            f"refused it ({shorten(mark.refused[0], 150)})" if mark.refused else "took it"
            for mark in (one, two)
        ]
        return f"different judgements in two runs: one {verdicts[0]}, the other {verdicts[1]}"
    left, right = one.states or {}, two.states or {}
    found = next(differences(left, right), JsonDifference("value", None, left, right))
    path, here, there = found.path(), found.left, found.right
    if found.kind == "keys":
        path, here, there = [*path, "(keys)"], [*here], [*there]
    values = [shorten(json.dumps(value, ensure_ascii=False), 80) for value in (here, there)]
    return f"different states in two runs, at {'.'.join(path)}: {values[0]} and {values[1]}"


def _differs(ones: Sequence[Mark], others: Sequence[Mark]) -> bool:
    return [(mark.place, mark.digest) for mark in ones] != [(mark.place, mark.digest) for mark in others]


def _first_difference(one: Path, two: Path) -> tuple[str, int] | None:
    """The first partition whose digests differ, and how many events it has."""
    for here, there in zip_longest(_lines(one), _lines(two)):
        if here != there:
            partition, events, _ = json.loads(here or there)
            return partition, events
    return None


def _lines(path: Path) -> Iterator[str]:
    with path.open() as file:
        yield from file
