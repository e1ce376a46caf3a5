"""What one tree action costs in trees of 10, 10,000 and 1,000,000 nodes (TREE-12).

Run: python benchmarks/tree.py [--rounds N]

Each round judges, applies and undoes one action on each tree in turn, so that the machine's noise falls on all
sizes alike. The nodes acted on are chosen anew each time, from the whole tree: a larger tree also misses the
processor's caches more, and a move touches most nodes. The last line moves the same ten nodes at every size.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from unisono.model.tree import TreeProfile, TreeState

SIZES = (10, 10_000, 1_000_000)
FANOUT = 10

PROFILE = TreeProfile()


def build(size: int) -> TreeState:
    """A tree of n0 … n{size-1}, ten children to a node, loaded from plain JSON."""
    nodes: list[Any] = [{"id": f"n{number}", "children": []} for number in range(size)]
    for number in range(1, size):
        nodes[(number - 1) // FANOUT]["children"].append(nodes[number])
    items: Any = {f"n{number}": {"name": f"node {number}"} for number in range(size)}
    return PROFILE.load({"explorer": {"items": items, "tree": [nodes[0]]}})


def push(size: int, turn: random.Random) -> Any:
    parent = f"n{turn.randrange(size)}"
    value = {"id": "new", "name": "new"}
    return {"target": "explorer", "value": value, "options": {"parent": parent, "position": "last"}}


def move(size: int, turn: random.Random) -> Any:
    """A node to the front of the children of another that does not lie below it."""
    while True:
        id, parent = turn.randrange(1, size), turn.randrange(size)
        above = parent
        while above > id:
            above = (above - 1) // FANOUT
        if above != id:
            return {"target": "explorer", "options": {"id": f"n{id}", "parent": f"n{parent}"}}


def update(size: int, turn: random.Random) -> Any:
    id = f"n{turn.randrange(size)}"
    return {"target": "explorer", "value": {"name": "renamed"}, "options": {"id": id}}


def move_near_the_root(_: int, turn: random.Random) -> Any:
    """A move among the same ten nodes at every size: what is left when caches play no part."""
    return move(SIZES[0], turn)


CASES: dict[str, tuple[str, Callable[[int, random.Random], Any]]] = {
    "treePush": ("treePush", push),
    "treeUpdate": ("treeUpdate", update),
    "treeMove": ("treeMove", move),
    "treeMove, same ten": ("treeMove", move_near_the_root),
}


def once(state: TreeState, event: Any) -> float:
    """Seconds to judge and apply one event, which is undone afterwards."""
    mark = state.mark()
    start = time.perf_counter()
    refusals = PROFILE.shape(event) or PROFILE.refusals(state, event)
    PROFILE.apply(state, event)
    taken = time.perf_counter() - start
    assert not refusals
    state.rollback(mark)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5_000, help="turns of each action on each tree")
    rounds = parser.parse_args().rounds
    states = {size: build(size) for size in SIZES}
    turn = random.Random(1)
    taken: dict[tuple[str, int], list[float]] = {(case, size): [] for case in CASES for size in SIZES}
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for case, (kind, make) in CASES.items():
            for size, state in states.items():
                event = {"type": kind, "payload": make(size, turn)}
                taken[case, size].append(once(state, event))
    print(f"{'action':<20}" + "".join(f"{size:>12,} nodes" for size in SIZES) + "     ratio to 10")
    for case in CASES:
        medians = [statistics.median(taken[case, size]) * 1e6 for size in SIZES]
        ratios = ", ".join(f"{median / medians[0]:.2f}" for median in medians[1:])
        print(f"{case:<20}" + "".join(f"{median:>15.1f} µs" for median in medians) + f"     {ratios}")


if __name__ == "__main__":
    main()
