"""Reloads the model in three steps: check it, review the log under it, then switch to it.

The authority gets two commands and serves its clients in between: the first checks whether it would accept the model,
the second switches to exactly that content.
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
from unisono.node.model_review import ReviewFailed, ReviewProgress, review_in_process

OnProgress = Callable[[ReviewProgress | Review], None]
"""Gets the progress of the review, and its result before the switch."""

log = logging.getLogger("unisono.node")

PROGRESS_LOG_S: Final = 10.0
"""Between two log lines about the progress of a review."""


class ReloadRequest(msgspec.Struct, frozen=True):
    """How to reload.

    `model`: a directory other than the server's own. `dry_run`: everything but the switch. `strict`: no switch when
    events no longer apply. `skip_history`: no review of the log.
    """

    model: str = ""
    dry_run: bool = False
    strict: bool = False
    skip_history: bool = False


class ModelReloader:
    """ModelReloader of one server, one at a time."""

    def __init__(
        self, settings: Settings, execute: Callable[[str, str, bytes], Awaitable[CommandResult]]
    ) -> None:
        """`execute` sends an admin command to the authority."""
        self._settings = settings
        self._execute = execute
        self._lock = asyncio.Lock()
        self._reviewing: asyncio.Task[tuple[Review, str]] | None = None
        self._stopped = False

    def stop(self) -> None:
        """The server ends: cancel the review."""
        self._stopped = True
        if self._reviewing is not None:
            self._reviewing.cancel()

    async def reload(self, request: ReloadRequest, on_progress: OnProgress | None = None) -> CommandResult:
        """The result of the command: an object with what changed, or with the error."""
        async with self._lock:
            checked = await self._execute("reload", request.model, b'{"dry_run":true}')
            if not checked.ok:
                return checked
            report: dict[str, Any] = msgspec.json.decode(checked.body)
            if not request.skip_history:
                try:
                    review = await self._review(request, report["digest"], on_progress)
                except ReviewFailed as failed:
                    return _refused(
                        checked.ticket, f"the log could not be read through the new model: {failed}"
                    )
                report["history"] = review_summary(review)
                if on_progress is not None:
                    on_progress(review)
                if request.strict and review.no_longer and not request.dry_run:
                    error = f"{review.no_longer} committed events no longer apply, and the reload is strict"
                    return _refused(checked.ticket, error, report["history"])
            if request.dry_run:
                return CommandResult(checked.ticket, True, msgspec.json.encode(report))
            same_content = msgspec.json.encode({"digest": report["digest"]})
            switched = await self._execute("reload", request.model, same_content)
            if not switched.ok or "history" not in report:
                return switched
            body = msgspec.json.decode(switched.body) | {"history": report["history"]}
            return CommandResult(switched.ticket, True, msgspec.json.encode(body))

    async def _review(self, request: ReloadRequest, digest: str, on_progress: OnProgress | None) -> Review:
        directory = request.model or self._settings.model or ""
        logged = asyncio.get_running_loop().time()

        def forward(progress: ReviewProgress) -> None:
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
            if on_progress is not None:
                on_progress(progress)

        if self._stopped:
            raise ReviewFailed("the server is stopping")
        self._reviewing = asyncio.create_task(review_in_process(self._settings, directory, forward))
        try:
            review, reviewed_digest = await self._reviewing
        except asyncio.CancelledError:
            self._reviewing.cancel()
            if not self._stopped:
                raise
            raise ReviewFailed("the server is stopping") from None
        if reviewed_digest != digest:
            raise ReviewFailed("the files of the model changed during the review; try again")
        for line in review.lines():
            log.info("reload: %s", line, extra={"review": line})
        return review


def review_summary(review: Review) -> dict[str, Any]:
    """A review as part of an answer: the counts, then each kind of change, then lines for people."""
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
