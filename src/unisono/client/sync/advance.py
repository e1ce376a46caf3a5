"""How a client keeps in step with a server: a pure function from what happened to what is to be done.

`advance(state, input, now)` is the only writer of a `SyncState`; the shell performs the effects in order and feeds
back what came of them. No socket, store or clock is touched here.

What always holds:

- At most one request (connect, sync or submit) is unanswered on a connection, so an `error` is about it, and
  there are never two syncs at once (CLIENT-07).
- Nothing is asked while an Apply is not in the store: a page is durable before the next one is asked for
  (CLIENT-05).
- `cursors[p]` is what the store has: every committed event of `p` up to it is stored. Pages move it. Broadcasts
  and results move it only on a server that declares ordered_delivery, only for live partitions, and only when
  no submit of ours is unanswered, whose events might still lie below (CLIENT-14).
- A partition is live when, on this connection, it is subscribed and its pages have reached the watermark. Drafts
  go out when all are (CLIENT-08).
"""

from __future__ import annotations

from typing import Final, assert_never

from unisono.client.net.wire import (
    Broadcast,
    Capabilities,
    Connected,
    ErrorMessage,
    HeartbeatAck,
    Limits,
    ServerMessage,
    SubmitResult,
    SyncResponse,
    VersionChanged,
)
from unisono.client.sync import drafts as syncdrafts
from unisono.client.sync import failing_drafts as syncfaults
from unisono.client.sync import history as synchistory
from unisono.client.sync.inputs_effects import (
    Contradicted,
    Dialing,
    DraftRetried,
    DraftsWaiting,
    DropConnection,
    Effect,
    Input,
    Lost,
    Opened,
    PartitionAdded,
    PartitionRemoved,
    Received,
    Retry,
    SendConnect,
    Stop,
    Stored,
    Submitted,
    TimerFired,
    WakeAt,
)
from unisono.client.sync.state import TOO_MANY, Phase, SyncCycle, SyncState, Transition
from unisono.protocol.errors import CloseCode
from unisono.protocol.profiles import COMPATIBILITY, TREE_POLICY

__all__ = ["Phase", "SyncCycle", "SyncState", "advance"]

UNSUPPORTED: Final = frozenset({"protocol_version_unsupported", "profile_unsupported"})
FATAL: Final = UNSUPPORTED | {"auth_failed", "server_error"}
"""Errors after which the connection closes (ERR-01)."""


def advance(state: SyncState, happened: Input, now: float) -> tuple[SyncState, tuple[Effect, ...]]:
    """The state after `happened`, and what to do about it, in order."""
    step = Transition(state, now)
    match happened:
        case Received():
            _received(step, happened)
        case Stored():
            step.set(storing=False)
            step.next()
        case Submitted():
            syncdrafts.submitted(step, happened)
        case DraftsWaiting():
            step.set(drafts_waiting=True)
            step.next()
        case PartitionAdded():
            synchistory.added(step, happened)
        case PartitionRemoved():
            synchistory.removed(step, happened.partition)
        case Dialing():
            step.set(phase=Phase.CONNECTING)
        case Opened():
            step.ask("connect")
            step.do(SendConnect(min(state.cursors.values(), default=0), state.snapshots))
        case Lost():
            _lost(step, happened.code)
        case Contradicted():
            step.set(storing=False)
            synchistory.start_over(step, "integrity_violation", happened.message)
        case DraftRetried():
            syncfaults.retried(step, happened.id)
        case TimerFired():
            _tick(step)
        case _:
            assert_never(happened)
    return step.state, tuple(step.effects)


def _received(step: Transition, happened: Received) -> None:
    message: ServerMessage = happened.message
    early = isinstance(message, Connected | ErrorMessage | HeartbeatAck)
    if not early and step.state.phase not in (Phase.SYNCING, Phase.LIVE):
        step.report("unexpected", f"{type(message).__name__} before connected")
        return
    match message:
        case Connected():
            _connected(step, message)
        case Broadcast():
            synchistory.broadcast(step, message.event, more=happened.more)
        case SyncResponse():
            synchistory.page(step, message, happened)
        case SubmitResult():
            syncdrafts.results(step, message)
        case VersionChanged():
            synchistory.model(step, message.new_model_version)
            step.next()
        case ErrorMessage():
            _error(step, message)
        case HeartbeatAck():
            pass
        case _:
            assert_never(message)


def _connected(step: Transition, told: Connected) -> None:
    if step.state.asked != "connect":
        step.report("unexpected", "connected twice")
        return
    capabilities = told.capabilities or Capabilities(tree_policy=TREE_POLICY)
    profile = capabilities.profile or step.state.profile
    policy = capabilities.tree_policy
    if profile != step.state.profile or (profile == COMPATIBILITY and policy != TREE_POLICY):
        step.report(
            "profile_unsupported", f"the server chose profile {profile!r} with tree policy {policy!r}"
        )
        step.set(failure="profile_unsupported")
        step.do(DropConnection())
        return
    limits = told.limits or Limits()
    step.set(
        asked=None,
        phase=Phase.SYNCING,
        limits=limits,
        ordered=capabilities.ordered_delivery,
        started=step.state.snapshots and capabilities.snapshots is True,
        batch_max=max(1, limits.max_batch_size),
        names_max=max(1, limits.max_subscriptions),
    )
    step.choose()
    if left_out := step.state.left_out:
        step.report(TOO_MANY, f"the server takes no more: {len(left_out)} partitions are not followed")
    synchistory.log(step, told)
    synchistory.model(step, told.model_version, told.model_digest)
    step.next()


def _lost(step: Transition, code: int | None) -> None:
    state = step.state
    if state.asked == "submit" and code == CloseCode.TOO_BIG:
        step.set(phase=Phase.OFFLINE)
        syncdrafts.refused(step, "too_big", "the message was too big for the server", ())
    if syncfaults.is_fault(step, code):
        syncfaults.faulted(step)
    if code == CloseCode.REPLACED:
        step.do(Stop("another connection with this client_id took over"))
    elif state.failure in UNSUPPORTED or (state.failure is None and code == CloseCode.UNSUPPORTED):
        step.do(Stop("the server does not speak this protocol version or profile"))
    else:
        step.do(Retry(new_token=state.failure == "auth_failed" or code == CloseCode.AUTH_FAILED))
    nothing: frozenset[str] = frozenset()
    step.set(
        phase=Phase.OFFLINE, asked=None, retry_at=None, submitted=(), failure=None, aside={},
        left_out={}, solo=False,
        live=nothing, due=nothing, subscribed=(), cycle=None, buffer=(), buffered_bytes=0, frontier=0, tail=0,
    )  # fmt: skip


def _tick(step: Transition) -> None:
    state = step.state
    if state.retry_at is not None:
        if step.now < state.retry_at:
            step.do(WakeAt(state.retry_at))
        else:
            step.set(retry_at=None)
            step.next()
    elif state.asked is not None:
        due = state.asked_at + state.options.answer_timeout_s
        if step.now < due:
            step.do(WakeAt(due))
        else:
            step.report("no_answer", f"the server left a {state.asked} unanswered")
            step.do(DropConnection())
    else:
        step.next()
    syncfaults.wake(step)


def _error(step: Transition, error: ErrorMessage) -> None:
    """An error is about the one unanswered request, if there is one."""
    step.report(error.code, error.message)
    asked = step.state.asked
    if error.code in FATAL or asked == "connect":
        step.set(failure=error.code)
        step.do(DropConnection())
    elif asked is not None and error.code == "rate_limited":
        _wait(step, error)
    elif asked == "submit":
        syncdrafts.refused_by(step, error)
    elif asked == "sync":
        synchistory.refused(step, error)


def _wait(step: Transition, error: ErrorMessage) -> None:
    """The same again when the time has come; a submit with fewer drafts, as some limits need."""
    state = step.state
    named = error.retry_after_ms
    if named is None and isinstance(error.details, dict):
        named = error.details.get("retry_after_ms")
    wait_s = named / 1000 if isinstance(named, int | float) else state.options.retry_after_s
    at = step.now + max(0.0, wait_s)
    if state.asked == "submit":
        step.set(batch_max=max(1, len(state.submitted) // 2))
    step.set(asked=None, submitted=(), retry_at=at)
    step.do(WakeAt(at))
