"""The planted bugs by name, with the invariants that they break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

Patches = list[Any]
MUTANTS: dict[str, tuple[set[str], Callable[[], Patches]]] = {}


def mutant(*invariants: str) -> Callable[[Callable[[], Patches]], Callable[[], Patches]]:
    """Register a bug with the invariants of which it breaks one at least."""

    def remember(make: Callable[[], Patches]) -> Callable[[], Patches]:
        MUTANTS[make.__name__] = set(invariants), make
        return make

    return remember


@contextmanager
def applied(name: str) -> Iterator[None]:
    with ExitStack() as stack:
        for each in MUTANTS[name][1]():
            stack.enter_context(each)
        yield


def around(owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
    """A patch of a function or method, made from the original."""
    return patch.object(owner, name, make(getattr(owner, name)))
