"""What the asyncio client and the blocking one have in common: what they are made from, and what never waits."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from unisono.client.actions import Actions, only
from unisono.client.config import Token, configure
from unisono.client.core import Core
from unisono.client.engine import Engine
from unisono.client.errors import ClientClosed, ClientError, ClientStopped, ModelMissing
from unisono.client.options import Options
from unisono.client.reasons import waiting_for
from unisono.client.status import Committed, Rejected, Status
from unisono.client.store.file import MEMORY
from unisono.client.submit import Ticket
from unisono.client.validation import partition_name
from unisono.model.model import Model
from unisono.protocol.profiles import CANONICAL
from unisono.vocabulary import Json

R = TypeVar("R")

NO_MODEL: Final = (
    "a client of the canonical profile without a model: its views stay empty, and no event is checked before it is"
    " sent. Give it the server's model (model=DIRECTORY), or profile='compatibility' for tree actions, or"
    " model=open_model() where only events are to be sent"
)


class Client(Actions[R], Generic[R]):
    """An offline-first client of one server.

    Everything works without a connection: drafts are stored and shown at once, and go out in order when there is
    one. `token` is a string, or a function (plain or async) that gives one and is asked again when the server
    refuses the last. `store` is a file that belongs to this client_id alone. `partitions` are followed from the
    start; None follows those the store has. `model` is a model directory or a Model; without one, any event of
    the right form is taken, and canonical events change nothing in the view: a client of the canonical profile
    warns of that (ModelMissing), unless it is given `open_model()`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: Token,
        client_id: str,
        store: str | Path = MEMORY,
        partitions: Sequence[str] | None = None,
        model: Model | Path | str | None = None,
        profile: str = CANONICAL,
        options: Options | None = None,
    ) -> None:
        self._config = configure(
            url,
            token=token,
            client_id=client_id,
            store=store,
            partitions=partitions,
            model=model,
            profile=profile,
            options=options,
        )
        self._engine: Engine | None = None
        if model is None and profile == CANONICAL:
            warnings.warn(NO_MODEL, ModelMissing, stacklevel=2)

    def view(self, partition: str | None = None) -> Json:
        """The state of a partition now, as plain JSON: committed events, then this client's drafts.

        Without a name, of the client's only partition.
        """
        name = partition_name(self._meant(partition))
        return self._core.views.dump(name, self._config.profile)

    @property
    def status(self) -> Status:
        """Where the client stands now."""
        return self._core.publisher.status

    def rejected(self) -> tuple[Rejected, ...]:
        """The drafts the server refused, oldest first."""
        return self._core.publisher.rejected

    def _late(self, waited_for: str, timeout: float | None) -> TimeoutError:
        """The error for a wait that ran out, with its reason."""
        why = waiting_for(self.status, self._config.url)
        return TimeoutError(f"{waited_for} within {timeout or 0:g} s: {why}")

    def _outcome(self, ticket: Ticket, timeout: float | None) -> Committed | Rejected:
        """What became of a draft; else why that is not known."""
        if ticket.outcome.done():
            return ticket.outcome.result()
        if (stopped := self.status.stopped) is not None:
            raise ClientStopped(stopped)
        raise self._late(f"the draft {ticket.draft.id!r} was not answered", timeout)

    def _meant(self, partition: str | None) -> str:
        return only(list(self.status.cursors), partition)

    def _check_not_open(self) -> None:
        if self._engine is not None and not self._engine.ended:
            raise ClientError("the client is open already")

    @property
    def _running(self) -> Engine:
        if self._engine is None:
            raise ClientClosed("the client is not open; use it in a `with` or `async with` statement")
        return self._engine

    @property
    def _core(self) -> Core:
        return self._running.core
