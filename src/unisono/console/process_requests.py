"""What the console asks of its processes, for replays and for queries, and their answers. One line of JSON each."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from unisono.config import Settings


class StartReplays(msgspec.Struct, frozen=True):
    """The first line: which log, by the settings of its server."""

    settings: Settings


class AskPartitionHistory(msgspec.Struct, frozen=True, tag="history"):
    """The events of a partition, as ids and times."""

    partition: str


class AskState(msgspec.Struct, frozen=True, tag="state"):
    """The state of a partition after the events up to an id."""

    partition: str
    at: int


class AskDifference(msgspec.Struct, frozen=True, tag="difference"):
    """What differs between the states of a partition at two ids."""

    partition: str
    at: int
    then: int


class AskChanges(msgspec.Struct, frozen=True, tag="changes"):
    """The events that made a value what it is at an id; with `item`, those that put the item below its parent."""

    partition: str
    at: int
    path: tuple[str, ...]
    item: str | None = None


class AskEvent(msgspec.Struct, frozen=True, tag="event"):
    """One event, whole, also one that has left the log."""

    committed_id: int


class AskModel(msgspec.Struct, frozen=True, tag="model"):
    """What the model in force consists of."""


ReplayRequest: TypeAlias = AskPartitionHistory | AskState | AskDifference | AskChanges | AskEvent | AskModel


class AskSql(msgspec.Struct, frozen=True):
    """A query over the lake at a location, with what delta-rs needs to reach it."""

    lake: str
    sql: str
    options: dict[str, str] = {}


class ProcessAnswer(msgspec.Struct, frozen=True):
    """The answer to one request, or the reason why there is none."""

    body: Any = None
    error: str = ""
