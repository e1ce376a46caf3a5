"""What was measured, kept in a file between runs."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Measured(msgspec.Struct):
    """One step: seconds of the wall and of all processors, and the highest resident sizes in MB.

    `worker_mb` is of the largest Python worker. `files` and `bytes`: in the lake afterwards. `items`: for the rate.
    `load`: of the machine when the step began. `share`: the part of a core that each executor had.
    """

    seconds: float
    cpu: float = 0
    items: int = 0
    driver_mb: float = 0
    java_mb: float = 0
    worker_mb: float = 0
    files: int = 0
    bytes: int = 0
    load: float = 0
    share: float = 1


class Results(msgspec.Struct):
    """By measurement (`growth 1000000`, `cluster 2`, `metadata 100000`), then by step."""

    machine: str = ""
    steps: dict[str, dict[str, Measured]] = {}
    started: dict[str, str] = {}
    """The step of a measurement that has begun and not ended: what it left behind is not to be gone on from."""


class ResultFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Results:
        if not self._path.exists():
            return Results()
        return msgspec.json.decode(self._path.read_bytes(), type=Results)

    def begin(self, measurement: str, step: str) -> None:
        results = self.read()
        results.started[measurement] = step
        self._write(results)

    def end(self, measurement: str, step: str, measured: Measured) -> None:
        results = self.read()
        results.started.pop(measurement, None)
        results.steps.setdefault(measurement, {})[step] = measured
        self._write(results)

    def forget(self, measurement: str) -> None:
        results = self.read()
        results.started.pop(measurement, None)
        results.steps.pop(measurement, None)
        self._write(results)

    def describe(self, machine: str) -> None:
        results = self.read()
        results.machine = machine
        self._write(results)

    def _write(self, results: Results) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
        part.replace(self._path)
