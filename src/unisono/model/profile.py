"""What a profile is: which events it takes, what they may look like, and what they do to a state.

A profile judges in two steps. `shape` looks at the event alone. `refusals` looks at the event and at the
state it would change, and is asked only when `shape` found nothing. `apply` changes the state and is called
only when `refusals` found nothing. All three are deterministic (VAL-05).
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from unisono.vocabulary import FieldError, Json, JsonObject


class ProfileState(Protocol):
    """What a partition holds under one profile; changed in place, undone exactly.

    Invariant: after `rollback(mark)` the state equals, in every observable way, what it was when `mark()`
    returned that mark. `settle()` forgets how to undo; marks taken before it are void.
    """

    def mark(self) -> int: ...

    def rollback(self, mark: int) -> None: ...

    def settle(self) -> None: ...

    def dump(self) -> Json:
        """The state as plain JSON that shares nothing with it; `load` of the profile takes it back."""
        ...

    def weight(self) -> int:
        """About how many bytes of memory the state takes; cheap to ask."""
        ...


S = TypeVar("S", bound=ProfileState)


class Profile(Protocol[S]):
    """One way to write and judge events."""

    @property
    def name(self) -> str: ...

    @property
    def accepted_event_types(self) -> tuple[str, ...]: ...

    def shape(self, event: JsonObject) -> list[FieldError]: ...

    def refusals(self, state: S, event: JsonObject) -> list[FieldError]: ...

    def apply(self, state: S, event: JsonObject) -> None: ...

    def empty(self) -> S: ...

    def load(self, dumped: Json) -> S: ...
