"""Random tree actions over several partitions, each with the verdict that the rules give it.

The verdicts and the states come from the naive oracle, one for each partition. Some events are in two
partitions: such an event must be valid in both and changes both, or neither (TREE-09).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import orjson

from tests.authority.seat import ItemResult, candidate
from tests.model.histories import Writer
from tests.model.oracle import WRITE, Oracle, same
from unisono.ipc.messages import Candidate
from unisono.model.model import Model, no_model
from unisono.model.partition import PartitionState
from unisono.store.port import LogReader

RESET_EVERY = 150
"""Actions on a partition before it starts over: the oracle copies and scans, so its states must stay small."""

WRITES = ("event.payload.target", "event.payload.value")


class Verdict(msgspec.Struct, frozen=True):
    """An item, and the fields it is refused on; none: it is committed."""

    item: Candidate
    refused: tuple[str, ...]

    def check(self, result: ItemResult) -> None:
        """That a result is this verdict."""
        assert result.id == self.item.id
        fields = tuple(error.field for error in result.errors or ())
        assert (result.status == "committed") == (not self.refused) == (not fields), (self, result)
        if self.refused == (WRITE,):
            assert all(field.startswith(WRITES) for field in fields), (self, result)
        else:
            assert fields[: len(self.refused)] == self.refused, (self, result)


class History:
    """An endless history."""

    def __init__(self, seed: int, partitions: Sequence[str] = "abcdefgh") -> None:
        self._writer = Writer(seed)
        self._oracles = {name: Oracle() for name in partitions}
        self._ages = dict.fromkeys(partitions, 0)
        self.accepted = 0

    def next(self, count: int) -> list[Verdict]:
        return [self._event() for _ in range(count)]

    def _event(self) -> Verdict:
        chance = self._writer.random
        names = sorted(chance.sample([*self._oracles], 2 if chance.random() < 0.15 else 1))
        event = self._writer.event(self._oracles[chance.choice(names)].state)
        self._ages[names[0]] += 1
        if self._ages[names[0]] == RESET_EVERY:
            self._ages[names[0]] = 0
            names, event = names[:1], {"type": "init", "payload": {"value": {}}}
        refused = self._act(names, event)
        self.accepted += not refused
        return Verdict(candidate(names, event), tuple(refused))

    def _act(self, names: Sequence[str], event: Any) -> list[str]:
        before = [self._oracles[name].state for name in names]
        for name in names:
            refused = self._oracles[name].act(event)
            if refused:
                for other, state in zip(names, before, strict=True):
                    self._oracles[other].state = state
                return refused
        return []

    def keep(self) -> tuple[int, dict[str, Any]]:
        """What `restore` takes back to: the oracles never change a state in place."""
        return self.accepted, {name: oracle.state for name, oracle in self._oracles.items()}

    def restore(self, kept: tuple[int, dict[str, Any]]) -> None:
        self.accepted, states = kept
        for name, state in states.items():
            self._oracles[name].state = state

    def check_states(self, dumps: Mapping[str, Any]) -> None:
        """That dumps are these states."""
        assert dumps.keys() == self._oracles.keys()
        for name, oracle in self._oracles.items():
            assert same(dumps[name]["tree"], oracle.state), name


def replay(log: LogReader, partitions: Sequence[str], model: Model | None = None) -> dict[str, Any]:
    """The dumps of partitions after the whole log, folded event by event from nothing."""
    model = model or no_model()
    states = {name: PartitionState() for name in partitions}
    since, head = 0, log.head()
    while since < head:
        for record in log.scan(since, head, limit=1000):
            event = orjson.loads(record.event)
            for name in record.partitions:
                if name in states:
                    assert model.apply_committed(states[name], event), record
            since = record.committed_id
    return {name: state.dump() for name, state in states.items()}
