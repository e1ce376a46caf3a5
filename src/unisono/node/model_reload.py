"""Another model, step by step: can it be taken, what does it make of the log, and then the switch.

The authority is asked twice, and works on for its clients in between: whether it would take the model, and to take
exactly that content.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from unisono.config import Settings
from unisono.ipc.messages import CommandResult
from unisono.model.replay import Review
from unisono.node.model_review import ReviewFailed, ReviewProgress, review_beside

Tell = Callable[[ReviewProgress | Review], None]
"""Hears how far the reading of the log is, and what came of it before anything switches."""

log = logging.getLogger("unisono.node")

PROGRESS_LOG_S: Final = 10.0
"""Between two lines of a server's log on how far a review is."""


class ReloadWish(msgspec.Struct, frozen=True):
    """What is asked for.

    `model`: another directory than the server's own. `dry_run`: everything but the switch. `strict`: no switch if
    events no longer apply. `skip_history`: without reading the log.
    """

    model: str = ""
    dry_run: bool = False
    strict: bool = False
    skip_history: bool = False


class Reloads:
    """Reloads of one server, one at a time."""

    def __init__(
        self, settings: Settings, order: Callable[[str, str, bytes], Awaitable[CommandResult]]
    ) -> None:
        self._settings = settings
        self._order = order
        self._lock = asyncio.Lock()
        self._reading: asyncio.Task[tuple[Review, str]] | None = None
        self._stopped = False

    def stop(self) -> None:
        """The server ends: no log is read any more."""
        self._stopped = True
        if self._reading is not None:
            self._reading.cancel()

    async def reload(self, wish: ReloadWish, tell: Tell | None = None) -> CommandResult:
        """What came of it, as an order's report: an object with what changed, or with the error."""
        async with self._lock:
            checked = await self._order("reload", wish.model, b'{"dry_run":true}')
            if not checked.ok:
                return checked
            told: dict[str, Any] = msgspec.json.decode(checked.body)
            if not wish.skip_history:
                try:
                    review = await self._review(wish, told["digest"], tell)
                except ReviewFailed as failed:
                    return _refused(
                        checked.ticket, f"the log could not be read through the new model: {failed}"
                    )
                told["history"] = described(review)
                if tell is not None:
                    tell(review)
                if wish.strict and review.no_longer and not wish.dry_run:
                    error = f"{review.no_longer} committed events no longer apply, and the order is strict"
                    return _refused(checked.ticket, error, told["history"])
            if wish.dry_run:
                return CommandResult(checked.ticket, True, msgspec.json.encode(told))
            terms = msgspec.json.encode({"digest": told["digest"]})
            done = await self._order("reload", wish.model, terms)
            if not done.ok or "history" not in told:
                return done
            body = msgspec.json.decode(done.body) | {"history": told["history"]}
            return CommandResult(done.ticket, True, msgspec.json.encode(body))

    async def _review(self, wish: ReloadWish, digest: str, tell: Tell | None) -> Review:
        place = wish.model or self._settings.model or ""
        logged = asyncio.get_running_loop().time()

        def heard(progress: ReviewProgress) -> None:
            nonlocal logged
            now = asyncio.get_running_loop().time()
            if now - logged > PROGRESS_LOG_S:
                logged = now
                log.info(
                    "reload: %d of %d events read through the new model",
                    progress.events,
                    progress.of,
                    extra={"events": progress.events, "total_events": progress.of},
                )
            if tell is not None:
                tell(progress)

        if self._stopped:
            raise ReviewFailed("the server is stopping")
        self._reading = asyncio.create_task(review_beside(self._settings, place, heard))
        try:
            review, read = await self._reading
        except asyncio.CancelledError:
            self._reading.cancel()
            if not self._stopped:
                raise
            raise ReviewFailed("the server is stopping") from None
        if read != digest:
            raise ReviewFailed("the files of the model changed meanwhile; try again")
        for line in review.lines():
            log.info("reload: %s", line, extra={"review": line})
        return review


def described(review: Review) -> dict[str, Any]:
    """A review as part of an answer: the counts first, then kind by kind, then the text for a person."""
    return {
        "no_longer": review.no_longer,
        "never": review.never,
        "refused": review.refused,
        **msgspec.to_builtins(review),
        "lines": review.lines(),
    }


def _refused(ticket: int, error: str, history: dict[str, Any] | None = None) -> CommandResult:
    log.warning("reload refused: %s", error, extra={"error": error})
    body = {"error": error} if history is None else {"error": error, "history": history}
    return CommandResult(ticket, False, msgspec.json.encode(body))
