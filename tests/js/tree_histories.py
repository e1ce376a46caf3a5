"""Random histories of tree actions with what the Python reducer makes of them, for the TypeScript one to repeat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from tests.model.histories import IDS, Writer
from unisono.model.authorship import UNKNOWN
from unisono.model.model import Model, open_model
from unisono.model.partition import PartitionState
from unisono.model.tree import TreeProfile
from unisono.model.tree_undo import At, ItemData, Where
from unisono.model.undo import Compensation, Place, fitting, unchanged, watch
from unisono.protocol.canonical import canonical

HOSTILE_NAMES = [
    "__proto__", "constructor", "prototype", "toString", "hasOwnProperty", "valueOf", "__defineGetter__", "length",
    "0", "00", "-1", "4294967295", "9007199254740993", "\u0000", "\u2028", "\ufeff", "\uffff", "\ue000", "\U0001f600",
    "\U0010ffff", "é", "e\u0301", "İ", "\u212b", "a\u0000b", "\\", '"', "_root ", "items ", "NaN", "undefined",
]  # fmt: skip
NUMBERS = [
    0, -0.0, 1, -1, 1.0, 0.1, 0.1 + 0.2, 1e21, 1e20, 1e-6, 1e-7, 5e-324, 1.7976931348623157e308, 2**53 - 1,
    -(2**53 - 1), 123456789.125, 1e16, 333333333.3333333, 4.35, 0.000001, 1e300, -2.5e-10, 100000000000000000000.0,
]  # fmt: skip


class HostileWriter(Writer):
    """A writer whose values hold names that mean something to JavaScript and numbers that are hard to spell.

    One event in eight is damaged: a part of it is missing or is something else.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed, calm=seed % 5 == 0)
        if not self.calm:
            self.ids = self.random.sample([*IDS, *HOSTILE_NAMES], 12)

    def value(self, depth: int = 0) -> Any:
        chance = self.random.random()
        if chance < 0.15:
            return self.random.choice(NUMBERS)
        if chance < 0.25:
            return self.random.choice(HOSTILE_NAMES)
        if chance < 0.35 and depth < 3:
            return {self.random.choice(HOSTILE_NAMES): self.value(depth + 1) for _ in range(2)}
        return super().value(depth)

    def target(self, state: Any) -> str:
        if not self.calm and self.chance(0.1):
            names = [name for name in HOSTILE_NAMES if "." not in name]
            return ".".join(self.random.choice(names) for _ in range(self.random.randrange(1, 4)))
        return super().target(state)

    def event(self, state: Any) -> Any:
        event = super().event(state)
        if self.chance(0.125):
            self._damage(event)
        return event

    def _damage(self, event: Any) -> None:
        odd = self.random.choice(
            [None, True, 7, "", "x", "_root", "a..b", [], [1], {}, {"after": 1}, {"id": ""}]
        )
        holder = self.random.choice(
            [event, event["payload"], *(part for part in event["payload"].values() if isinstance(part, dict))]
        )
        key = self.random.choice([*holder, "options", "position", "parent", "replace", "id"])
        if self.chance(0.3):
            holder.pop(key, None)
        else:
            holder[key] = odd


def _place(place: Place) -> Any:
    """A place as the script in JavaScript writes its own."""
    match place:
        case At(path=path):
            return {"at": list(path)}
        case ItemData(target=target, id=id, keys=keys):
            return {"target": list(target), "id": id, "keys": None if keys is None else list(keys)}
        case Where(target=target, id=id):
            return {"target": list(target), "stands": id}
    return list(place)


def spelled(compensation: Compensation | None, state: PartitionState) -> Any:
    """How an event is taken back, and whether what it left is still there in a later state, as canonical text."""
    if compensation is None:
        return None
    places = sorted(canonical(_place(place)).decode() for place, _ in compensation.left)
    events = fitting(state, compensation.events)
    same = unchanged(state, compensation.left)
    return canonical([list(compensation.events), list(places), list(events), same]).decode()


def apply_watched(model: Model, profile: str, state: PartitionState, event: Any) -> Compensation | None:
    """Apply an event; how it is taken back."""

    def change() -> bool:
        model.apply(profile, state, event)
        return True

    return watch(model, state, event, UNKNOWN, change)[1]


def histories(count: int, seed: int = 1, undo_every: int = 4) -> Iterator[bytes]:
    """Lines for `tree-vectors.mjs`; one history in so many is also taken back."""
    profile, model = TreeProfile(), open_model()
    for number in range(count):
        writer, whole = HostileWriter(seed * 1_000_003 + number), PartitionState()
        state = whole.tree
        events, refusals = [], []
        undos: list[Compensation | None] | None = None if number % undo_every else []
        dumped: Any = {}
        for _ in range(writer.random.choice([2, 4, 6, 12])):
            event = orjson.loads(canonical(writer.event(dumped)))
            errors = profile.shape(event) or profile.refusals(state, event)
            if not errors:
                if undos is None:
                    profile.apply(state, event)
                else:
                    undos.append(apply_watched(model, "compatibility", whole, event))
                dumped = state.dump()
            events.append(event)
            refusals.append([error.field for error in errors])
        text = canonical(dumped).decode()
        back = None if undos is None else [spelled(each, whole) for each in undos]
        yield orjson.dumps({"events": events, "refusals": refusals, "state": text, "undos": back}) + b"\n"
