/** How a client keeps in step with a server: a pure function from inputs to effects.
 *
 * `advance(state, happened, now)` is the only writer of a `SyncState`. The core performs the effects in order and feeds
 * their outcomes back. No socket, store or clock is touched here.
 *
 * What always holds:
 *
 * - At most one request (connect, sync or submit) is unanswered on a connection, so an `error` is about that request,
 *   and there are never two syncs at once (CLIENT-07).
 * - No request is made while an Apply is not in the store: a page is durable before the next one is requested
 *   (CLIENT-05).
 * - `cursors` are what the store has: every committed event of a partition up to its cursor is stored. Pages move it.
 *   Broadcasts and results move it only on a server that declares ordered_delivery, only for live partitions, and only
 *   when no submit of ours is unanswered, whose events might still lie below (CLIENT-14).
 * - A partition is live when, on this connection, it is subscribed and its pages have reached the watermark. Drafts
 *   are sent when all partitions are live (CLIENT-08).
 */

import { isObject, LIMITS } from "../codec.js";
import {
  CLOSE_AUTH_FAILED,
  CLOSE_REPLACED,
  CLOSE_TOO_BIG,
  CLOSE_UNSUPPORTED,
  type Connected,
  type ErrorMessage,
} from "../wire.js";
import { onError as onSubmitError, onRefused, onResults, onSubmitted } from "./drafts.js";
import { isServerFailure, onRetry, onServerFailure, scheduleRetry } from "./failing-drafts.js";
import {
  checkLog,
  checkModel,
  onBroadcast,
  onPage,
  onPartitionAdded,
  onPartitionRemoved,
  onRevoked,
  onSyncError,
  startOver,
} from "./history.js";
import type { Effect, Input, Received } from "./inputs-effects.js";
import { COMPATIBILITY, DISCONNECTED, TOO_MANY, type SyncState } from "./state.js";
import { Transition } from "./transition.js";

const TREE_POLICY = "strict";
const UNSUPPORTED = ["protocol_version_unsupported", "profile_unsupported"];

/** Errors after which the connection closes (ERR-01). */
const FATAL = [...UNSUPPORTED, "auth_failed", "server_error"];

/** The state after `happened`, and the effects to perform, in order. */
export function advance(state: SyncState, happened: Input, now: number): [SyncState, Effect[]] {
  const step = new Transition(state, now);
  switch (happened.kind) {
    case "Received":
      onMessage(step, happened);
      break;
    case "Stored":
      step.set({ storing: false });
      step.requestNext();
      break;
    case "Submitted":
      onSubmitted(step, happened);
      break;
    case "DraftsWaiting":
      step.set({ draftsWaiting: true });
      step.requestNext();
      break;
    case "PartitionAdded":
      onPartitionAdded(step, happened);
      break;
    case "PartitionRemoved":
      onPartitionRemoved(step, happened.partition);
      break;
    case "Dialing":
      step.set({ phase: "connecting" });
      break;
    case "Opened": {
      step.beginRequest("connect");
      const lastCommittedId = state.cursors.size ? Math.min(...state.cursors.values()) : 0;
      step.emit({ kind: "SendConnect", lastCommittedId, snapshots: state.wantsSnapshots });
      break;
    }
    case "Lost":
      onLost(step, happened.code);
      break;
    case "Contradicted":
      step.set({ storing: false });
      startOver(step, "integrity_violation", happened.message);
      break;
    case "DraftRetried":
      onRetry(step, happened.id);
      break;
    case "TimerFired":
      onTimer(step);
      break;
    default:
      happened satisfies never;
  }
  return [step.state, step.effects];
}

function onMessage(step: Transition, received: Received): void {
  const { message } = received;
  const { phase } = step.state;
  const beforeConnected = ["connected", "error", "heartbeat_ack"].includes(message.type);
  if (!beforeConnected && phase !== "syncing" && phase !== "live") {
    step.report("unexpected", `${message.type} before connected`);
    return;
  }
  switch (message.type) {
    case "connected":
      onConnected(step, message.payload);
      break;
    case "event_broadcast":
      onBroadcast(step, message.payload, received.more === true);
      break;
    case "sync_response":
      onPage(step, message.payload, received);
      break;
    case "submit_events_result":
      onResults(step, message.payload);
      break;
    case "version_changed":
      checkModel(step, message.payload.new_model_version);
      step.requestNext();
      break;
    case "error":
      onError(step, message.payload);
      break;
    case "heartbeat_ack":
      break;
    default:
      message satisfies never;
  }
}

function onConnected(step: Transition, connected: Connected): void {
  const { state } = step;
  if (state.pendingRequest !== "connect") {
    step.report("unexpected", "connected twice");
    return;
  }
  const { capabilities } = connected;
  const profile = capabilities?.profile || state.profile;
  const policy = capabilities === null ? TREE_POLICY : capabilities.tree_policy;
  if (profile !== state.profile || (profile === COMPATIBILITY && policy !== TREE_POLICY)) {
    step.report("profile_unsupported", `the server chose profile ${profile} with tree policy ${policy}`);
    step.set({ failure: "profile_unsupported" });
    step.emit({ kind: "DropConnection" });
    return;
  }
  const limits = connected.limits ?? LIMITS;
  step.set({
    pendingRequest: null,
    phase: "syncing",
    limits,
    orderedDelivery: capabilities?.ordered_delivery ?? false,
    serverSendsSnapshots: state.wantsSnapshots && capabilities?.snapshots === true,
    batchMax: Math.max(1, limits.max_batch_size),
    namesMax: Math.max(1, limits.max_subscriptions),
    atomicGranted: capabilities?.extensions.includes("atomic") ?? false,
  });
  step.leaveOutExcess();
  const leftOut = step.state.leftOut.size;
  if (leftOut) step.report(TOO_MANY, `the server takes no more: ${leftOut} partitions are not followed`);
  checkLog(step, connected);
  checkModel(step, connected.model_version, connected.model_digest);
  step.requestNext();
}

/** A server may take a `connect` so long after its sender gave the connection up, and end the next one for it. */
const LATE_CONNECT_MS = 60_000;

function onLost(step: Transition, code: number | null): void {
  const { state } = step;
  if (state.pendingRequest === "submit" && code === CLOSE_TOO_BIG) {
    step.set({ phase: "offline" });
    onRefused(step, "too_big", "the message was too big for the server", []);
  }
  if (isServerFailure(step, code)) onServerFailure(step);
  const replaced = code === CLOSE_REPLACED;
  let connectLostAt = state.connectLostAt;
  if (replaced && (connectLostAt === null || step.now - connectLostAt > LATE_CONNECT_MS)) {
    step.emit({ kind: "Stop", reason: "another connection with this client_id took over" });
  } else if (state.failure === null ? code === CLOSE_UNSUPPORTED : UNSUPPORTED.includes(state.failure)) {
    step.emit({ kind: "Stop", reason: "the server does not speak this protocol version or profile" });
  } else {
    step.emit({ kind: "Retry", newToken: state.failure === "auth_failed" || code === CLOSE_AUTH_FAILED });
  }
  // One connection that is replaced is explained by one late connect; the next one is somebody else's.
  if (replaced) connectLostAt = null;
  if (state.pendingRequest === "connect") connectLostAt = step.now;
  step.set({ ...DISCONNECTED, connectLostAt });
}

function onTimer(step: Transition): void {
  const { state } = step;
  if (state.retryAt !== null) {
    if (step.now < state.retryAt) {
      step.emit({ kind: "WakeAt", at: state.retryAt });
    } else {
      step.set({ retryAt: null });
      step.requestNext();
    }
  } else if (state.pendingRequest !== null) {
    const deadline = state.requestedAt + state.options.answerTimeoutMs;
    if (step.now < deadline) {
      step.emit({ kind: "WakeAt", at: deadline });
    } else {
      step.report("no_answer", `the server left a ${state.pendingRequest} unanswered`);
      step.emit({ kind: "DropConnection" });
    }
  } else {
    step.requestNext();
  }
  scheduleRetry(step);
}

/** An error is about the one unanswered request, if there is one. */
function onError(step: Transition, error: ErrorMessage): void {
  step.report(error.code, error.message);
  const request = step.state.pendingRequest;
  if (FATAL.includes(error.code) || request === "connect") {
    step.set({ failure: error.code });
    step.emit({ kind: "DropConnection" });
  } else if (error.code === "forbidden" && isObject(error.details) && error.details["revoked"]) {
    onRevoked(step, error);
  } else if (request !== null && error.code === "rate_limited") {
    retryLater(step, error);
  } else if (request === "submit") {
    onSubmitError(step, error);
  } else if (request === "sync") {
    onSyncError(step, error);
  }
}

/** Repeat the request after the server's wait; a submit with half the drafts, as some limits need.
 *
 * A transaction is never divided.
 */
function retryLater(step: Transition, error: ErrorMessage): void {
  const { state } = step;
  const named = error.retry_after_ms ?? (isObject(error.details) ? error.details["retry_after_ms"] : null);
  const at = step.now + Math.max(0, typeof named === "number" ? named : state.options.retryAfterMs);
  if (state.pendingRequest === "submit" && !state.submittedBatch) {
    step.set({ batchMax: Math.max(1, Math.floor(state.submitted.length / 2)) });
  }
  step.set({ pendingRequest: null, submitted: [], retryAt: at });
  step.emit({ kind: "WakeAt", at });
}
