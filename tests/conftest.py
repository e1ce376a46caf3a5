"""What holds for all tests: their order, no hurry, and that each leaves the process as it found it."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
"""How long an example takes says something of the machine and nothing of what is tested."""

SLOW_FIRST = ("faults", "nodes", "server", "simulation", "docs", "console", "js", "authority")
"""Directories whose files take minutes: where several run at once, none of them should begin last. Those of the
pipeline, which work, take turns with these, which wait."""

MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 << 30
"""Tests write into memory where there is room: their tens of thousands of commits wait for no disk. Every fsync is
called all the same; what a disk makes of it no test can tell. `make soak` writes to the disk."""

with contextlib.suppress(OSError):
    _room = os.statvfs(MEMORY)
    if _room.f_bavail * _room.f_frsize >= MEMORY_BYTES_MIN and os.access(MEMORY, os.W_OK):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

GARBAGE_THRESHOLDS = (20_000, 20, 50)
"""A process of the tests has a million objects that live as long as it: looking through them again and again took a
sixth of the time of tests without processes of their own."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)


def pytest_collection_finish() -> None:
    """What is imported and collected is looked through once."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path.relative_to(item.config.rootpath), []).append(item)
    working = [path for path in files if "pipeline" in path.parts]
    waiting = sorted((path for path in files if "pipeline" not in path.parts), key=_place)
    slow = sum(_place(path) < len(SLOW_FIRST) for path in waiting)
    turns = [path for pair in zip_longest(working, waiting[:slow]) for path in pair if path is not None]
    items[:] = [item for path in [*turns, *waiting[slow:]] for item in files[path]]


def _place(path: Path) -> int:
    return next((place for place, room in enumerate(SLOW_FIRST) if room in path.parts), len(SLOW_FIRST))


def _settings() -> dict[str, Any]:
    """What all tests of a process share and some of them touch."""
    loggers = {
        name: (logger.level, _handlers(logger), logger.propagate, logger.disabled)
        for name, logger in [("", logging.getLogger()), *logging.root.manager.loggerDict.items()]
        if isinstance(logger, logging.Logger) and (name == "" or name.startswith("unisono"))
    }
    found: dict[str, Any] = {
        "the working directory": Path.cwd(),
        "loggers": {
            name: kept for name, kept in loggers.items() if name == "" or kept != (0, (), True, False)
        },
        "garbage collection": (gc.isenabled(), gc.get_threshold(), gc.get_debug()),
        "the switch interval": sys.getswitchinterval(),
        "the recursion limit": sys.getrecursionlimit(),
    }
    if "pyspark" not in sys.modules:  # a Spark in this process has its own way with these
        found["the environment"] = {
            name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"
        }
        found["signal handlers"] = {name: signal.getsignal(name) for name in SIGNALS}
    return found


def _modules() -> dict[str, tuple[object, object]]:
    """Modules of ours, and what their packages hold under their names: not always the same, and never changing."""
    modules = sys.modules
    return {
        name: (module, getattr(modules.get((place := _place_of(name))[0]), place[1], None))
        for name, module in modules.items()
        if name.startswith("unisono.")
    }


@cache
def _place_of(name: str) -> tuple[str, str]:
    """Package and name of a module."""
    package, _, own = name.rpartition(".")
    return package, own


def _handlers(logger: logging.Logger) -> tuple[logging.Handler, ...]:
    """All but those that pytest itself comes and goes with."""
    return tuple(handler for handler in logger.handlers if not type(handler).__module__.startswith("_pytest"))


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before, modules = _settings(), _modules()
    yield
    after, now = _settings(), _modules()
    left = {
        what: (before[what], after[what]) for what in before if after.get(what, before[what]) != before[what]
    }
    assert not left, f"left behind: {', '.join(left)}"
    assert not [name for name in modules if now.get(name) != modules[name]], "modules are there twice"


@pytest.fixture
def embedding() -> Iterator[None]:
    """An authority in a thread of this process makes itself at home in the interpreter; put that back."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)
    gc.unfreeze()
