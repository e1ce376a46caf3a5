"""How a client keeps in step with a server: a pure function from inputs to effects.

`advance(state, happened, now)` is the only writer of a `SyncState`. The core performs the effects in order and feeds
their outcomes back. No socket, store or clock is touched here.

What always holds:

- At most one request (connect, sync or submit) is unanswered on a connection, so an `error` is about that request,
  and there are never two syncs at once (CLIENT-07).
- No request is made while an Apply is not in the store: a page is durable before the next one is requested
  (CLIENT-05).
- `cursors[p]` is what the store has: every committed event of `p` up to it is stored. Pages move it. Broadcasts
  and results move it only on a server that declares ordered_delivery, only for live partitions, and only when
  no submit of ours is unanswered, whose events might still lie below (CLIENT-14).
- A partition is live when, on this connection, it is subscribed and its pages have reached the watermark. Drafts
  are sent when all partitions are live (CLIENT-08).
"""

from __future__ import annotations

from typing import Final, assert_never

from unisono.client.sync import drafts, failing_drafts, history
from unisono.client.sync.inputs_effects import (
    Contradicted,
    Dialing,
    DraftRetried,
    DraftsWaiting,
    DropConnection,
    Effect,
    Input,
    Lost,
    NoteAuthor,
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
from unisono.client.sync.state import TOO_MANY, Phase, SyncCycle, SyncState
from unisono.client.sync.transition import Transition
from unisono.protocol.client_codec import (
    Broadcast,
    Capabilities,
    Connected,
    ErrorMessage,
    HeartbeatAck,
    HistoryResult,
    Limits,
    PresenceUpdate,
    ServerMessage,
    SubmitResult,
    SyncResponse,
    VersionChanged,
)
from unisono.protocol.errors import CloseCode
from unisono.protocol.extensions import ATOMIC, IDENTITY
from unisono.protocol.profiles import COMPATIBILITY, TREE_POLICY

__all__ = ["Phase", "SyncCycle", "SyncState", "advance"]

UNSUPPORTED: Final = frozenset({"protocol_version_unsupported", "profile_unsupported"})
FATAL: Final = UNSUPPORTED | {"auth_failed", "server_error"}
"""Errors after which the connection closes (ERR-01)."""

LATE_CONNECT_S: Final = 60.0
"""A server may take a `connect` so long after its sender gave the connection up, and end the next one for it."""


def advance(state: SyncState, happened: Input, now: float) -> tuple[SyncState, tuple[Effect, ...]]:
    """The state after `happened`, and the effects to perform, in order."""
    step = Transition(state, now)
    match happened:
        case Received():
            _on_message(step, happened)
        case Stored():
            step.set(storing=False)
            step.request_next()
        case Submitted():
            drafts.on_submitted(step, happened)
        case DraftsWaiting():
            step.set(drafts_waiting=True)
            step.request_next()
        case PartitionAdded():
            history.on_partition_added(step, happened)
        case PartitionRemoved():
            history.on_partition_removed(step, happened.partition)
        case Dialing():
            step.set(phase=Phase.CONNECTING)
        case Opened():
            step.begin_request("connect")
            step.emit(SendConnect(min(state.cursors.values(), default=0), state.wants_snapshots))
        case Lost():
            _on_lost(step, happened.code)
        case Contradicted():
            step.set(storing=False)
            history.start_over(step, "integrity_violation", happened.message)
        case DraftRetried():
            failing_drafts.on_retry(step, happened.id)
        case TimerFired():
            _on_timer(step)
        case _:
            assert_never(happened)
    return step.state, tuple(step.effects)


def _on_message(step: Transition, received: Received) -> None:
    message: ServerMessage = received.message
    before_connected = isinstance(message, Connected | ErrorMessage | HeartbeatAck)
    if not before_connected and step.state.phase not in (Phase.SYNCING, Phase.LIVE):
        step.report("unexpected", f"{type(message).__name__} before connected")
        return
    match message:
        case Connected():
            _on_connected(step, message)
        case Broadcast():
            history.on_broadcast(step, message.event, more=received.more)
        case SyncResponse():
            history.on_page(step, message, received)
        case SubmitResult():
            drafts.on_results(step, message)
        case VersionChanged():
            history.check_model(step, message.new_model_version)
            step.request_next()
        case ErrorMessage():
            _on_error(step, message)
        case HeartbeatAck() | PresenceUpdate() | HistoryResult():
            pass  # presence and history never reach this: the connection takes them
        case _:
            assert_never(message)


def _on_connected(step: Transition, connected: Connected) -> None:
    if step.state.pending_request != "connect":
        step.report("unexpected", "connected twice")
        return
    capabilities = connected.capabilities or Capabilities(tree_policy=TREE_POLICY)
    profile = capabilities.profile or step.state.profile
    policy = capabilities.tree_policy
    if profile != step.state.profile or (profile == COMPATIBILITY and policy != TREE_POLICY):
        step.report(
            "profile_unsupported", f"the server chose profile {profile!r} with tree policy {policy!r}"
        )
        step.set(failure="profile_unsupported")
        step.emit(DropConnection())
        return
    limits = connected.limits or Limits()
    step.set(
        pending_request=None,
        phase=Phase.SYNCING,
        limits=limits,
        ordered_delivery=capabilities.ordered_delivery,
        server_sends_snapshots=step.state.wants_snapshots and capabilities.snapshots is True,
        batch_max=max(1, limits.max_batch_size),
        names_max=max(1, limits.max_subscriptions),
        atomic_granted=ATOMIC in capabilities.extensions,
    )
    if IDENTITY in capabilities.extensions:
        step.emit(NoteAuthor(connected.author))
    step.leave_out_excess()
    if left_out := step.state.left_out:
        step.report(TOO_MANY, f"the server takes no more: {len(left_out)} partitions are not followed")
    history.check_log(step, connected)
    history.check_model(step, connected.model_version, connected.model_digest)
    step.request_next()


def _on_lost(step: Transition, code: int | None) -> None:
    state = step.state
    if state.pending_request == "submit" and code == CloseCode.TOO_BIG:
        step.set(phase=Phase.OFFLINE)
        drafts.on_refused(step, "too_big", "the message was too big for the server", ())
    if failing_drafts.is_server_failure(step, code):
        failing_drafts.on_server_failure(step)
    lost_at = state.connect_lost_at
    if code == CloseCode.REPLACED and (lost_at is None or step.now - lost_at > LATE_CONNECT_S):
        step.emit(Stop("another connection with this client_id took over"))
    elif state.failure in UNSUPPORTED or (state.failure is None and code == CloseCode.UNSUPPORTED):
        step.emit(Stop("the server does not speak this protocol version or profile"))
    else:
        step.emit(Retry(new_token=state.failure == "auth_failed" or code == CloseCode.AUTH_FAILED))
    step.set(
        connect_lost_at=_connect_lost_at(step, code),
        phase=Phase.OFFLINE,
        pending_request=None,
        retry_at=None,
        submitted=(),
        failure=None,
        refused_partitions={},
        left_out={},
        one_by_one=False,
        live=frozenset(),
        tail_fetch_due=frozenset(),
        subscribed=(),
        cycle=None,
        buffer=(),
        buffered_bytes=0,
        highest_seen_id=0,
        tail_events=0,
    )


def _connect_lost_at(step: Transition, code: int | None) -> float | None:
    """One connection that is replaced is explained by one late connect; the next one is somebody else's."""
    if step.state.pending_request == "connect":
        return step.now
    return None if code == CloseCode.REPLACED else step.state.connect_lost_at


def _on_timer(step: Transition) -> None:
    state = step.state
    if state.retry_at is not None:
        if step.now < state.retry_at:
            step.emit(WakeAt(state.retry_at))
        else:
            step.set(retry_at=None)
            step.request_next()
    elif state.pending_request is not None:
        deadline = state.requested_at + state.options.answer_timeout_s
        if step.now < deadline:
            step.emit(WakeAt(deadline))
        else:
            step.report("no_answer", f"the server left a {state.pending_request} unanswered")
            step.emit(DropConnection())
    else:
        step.request_next()
    failing_drafts.schedule_retry(step)


def _on_error(step: Transition, error: ErrorMessage) -> None:
    """An error is about the one unanswered request, if there is one."""
    step.report(error.code, error.message)
    request = step.state.pending_request
    if error.code in FATAL or request == "connect":
        step.set(failure=error.code)
        step.emit(DropConnection())
    elif error.code == "forbidden" and isinstance(error.details, dict) and error.details.get("revoked"):
        history.on_revoked(step, error)
    elif request is not None and error.code == "rate_limited":
        _retry_later(step, error)
    elif request == "submit":
        drafts.on_error(step, error)
    elif request == "sync":
        history.on_sync_error(step, error)


def _retry_later(step: Transition, error: ErrorMessage) -> None:
    """Repeat the request after the server's wait; a submit with half the drafts, as some limits need.

    A transaction is never divided.
    """
    state = step.state
    named = error.retry_after_ms
    if named is None and isinstance(error.details, dict):
        named = error.details.get("retry_after_ms")
    wait_s = named / 1000 if isinstance(named, int | float) else state.options.retry_after_s
    at = step.now + max(0.0, wait_s)
    if state.pending_request == "submit" and not state.submitted_batch:
        step.set(batch_max=max(1, len(state.submitted) // 2))
    step.set(pending_request=None, submitted=(), retry_at=at)
    step.emit(WakeAt(at))
