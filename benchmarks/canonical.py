"""What canonical JSON costs beside plain sorted JSON. Run: python benchmarks/canonical.py

Prints, for events of three sizes in plain and in accented text, the median time of `canonical()` beside
`orjson.dumps` with sorted keys, and of `parse_canonical()` beside a msgspec decode followed by the same
dump. Both sides of a comparison run in turn, so a busy moment of the machine falls on both.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from statistics import median

import msgspec
import orjson

from unisono.protocol.canonical import canonical, parse_canonical
from unisono.vocabulary import Json, JsonObject

RATIO_MAX = 3.0
"""How much dearer than sorted orjson `canonical()` may be on strings, booleans, nulls and safe integers."""

ROUNDS = 201
ROUND_US = 400  # far above the clock's grain, far below the time slice of a process

PLAIN = ("Buy milk and bread", "Review the budget before Friday", "Call the plumber about the kitchen sink")
ACCENTED = (
    "Acheter du café à la crème",
    "Vérifier le budget d'été à Málaga",
    "Größe prüfen: übermäßig schön",
)


def event(texts: tuple[str, str, str], size: int) -> JsonObject:
    """An event of about `size` bytes of JSON: one item, or a list of them."""
    items: list[Json] = []
    seed = uuid.UUID(int=0x0195_F3A1_77C2_7B40_9C1E_5A0D_EE31_42F7).int
    number = 0
    while True:
        number += 1
        item: JsonObject = {
            "id": str(uuid.UUID(int=seed * (2 * number + 1) % 2**128)),
            "title": texts[number % 3],
            "done": number % 2 == 0,
            "parent": None,
            "order": number * 1024,
        }
        items.append(item)
        payload: Json = item if len(items) == 1 else {"items": items, "at": 1_753_200_000_123}
        whole: JsonObject = {"type": "todo.created", "payload": payload}
        if len(orjson.dumps(whole)) >= size:
            return whole


def parse_plainly(raw: bytes) -> tuple[Json, bytes]:
    value = msgspec.json.decode(raw)
    return value, orjson.dumps(value, None, orjson.OPT_SORT_KEYS)


def calls_for(call: Callable[[], object]) -> int:
    start = time.perf_counter_ns()
    for _ in range(100):
        call()
    per_call_us = (time.perf_counter_ns() - start) / 100 / 1_000
    return max(1, int(ROUND_US / per_call_us))


def timed(call: Callable[[], object], calls: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - start) / calls


def compare(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    """Median nanoseconds per call of both, measured in turn."""
    calls = calls_for(ours)
    rounds = [(timed(ours, calls), timed(theirs, calls)) for _ in range(ROUNDS)]
    return median(ours_ns for ours_ns, _ in rounds), median(theirs_ns for _, theirs_ns in rounds)


def report(name: str, size: int, ours_ns: float, theirs_ns: float) -> float:
    ratio = ours_ns / theirs_ns
    print(f"{name:28} {size:6} B {ours_ns / 1000:9.2f} µs {theirs_ns / 1000:9.2f} µs {ratio:7.2f}x")
    return ratio


def main() -> int:
    worst = 0.0
    print(f"{'':28} {'size':>8} {'ours':>12} {'plain':>12} {'ratio':>8}")
    for kind, texts in (("ascii", PLAIN), ("accented", ACCENTED)):
        for size in (150, 400, 2_000):
            value = event(texts, size)
            raw = orjson.dumps(value)
            assert canonical(value) == orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
            ours_ns, theirs_ns = compare(
                partial(canonical, value), partial(orjson.dumps, value, None, orjson.OPT_SORT_KEYS)
            )
            worst = max(worst, report(f"canonical, {kind}", len(raw), ours_ns, theirs_ns))
            ours_ns, theirs_ns = compare(partial(parse_canonical, raw), partial(parse_plainly, raw))
            report(f"parse_canonical, {kind}", len(raw), ours_ns, theirs_ns)
    print(f"worst canonical ratio {worst:.2f}, allowed {RATIO_MAX:.2f}")
    return 0 if worst <= RATIO_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
