/** Submitting drafts: in draft_clock order, in batches, and none delayed by one that is refused (CLIENT-08).
 *
 * The drafts of a transaction are sent as one atomic batch and have one outcome (CLIENT-17).
 */

import { fieldErrors, isObject } from "../codec.js";
import type { ErrorMessage, FieldError, SubmitResult } from "../wire.js";
import { onAnswered } from "./failing-drafts.js";
import { applying, type Accepted, type DraftRejected, type Submitted } from "./inputs-effects.js";
import type { Transition } from "./transition.js";

const rejected = (id: string, reason: string, errors: FieldError[], statusUpdatedAt: number | null = null) => ({
  id,
  reason,
  errors,
  statusUpdatedAt,
});

/** Why a transaction is rejected by the client itself: it is never sent in parts. */
export const UNFIT = {
  atomic_unsupported: "the server does not take transactions (the extension atomic)",
  too_many_events: "the transaction has more events than the server takes in one batch",
  too_big: "the transaction is larger than a message to this server may be",
};

function reject(step: Transition, ids: readonly string[], reason: string, errors: FieldError[]): void {
  step.apply(applying({ refused: ids.map((id) => rejected(id, reason, errors)) }));
}

/** The core has performed SubmitNext. */
export function onSubmitted(step: Transition, submitted: Submitted): void {
  const { tooLarge, gone, ids, unfit } = submitted;
  if (tooLarge !== undefined) {
    step.set({ pendingRequest: null });
    step.clearFailures(new Set([tooLarge]));
    const error = { field: "event", message: "the event is larger than a message to this server may be" };
    reject(step, [tooLarge], "too_big", [error]);
  } else if (unfit !== undefined) {
    step.set({ pendingRequest: null });
    step.clearFailures(new Set(unfit.ids));
    reject(step, unfit.ids, unfit.reason, [{ field: "", message: UNFIT[unfit.reason] }]);
  } else if (ids.length) {
    step.set({ submitted: ids, submittedBatch: submitted.atomic === true });
  } else if (gone !== undefined) {
    step.set({ pendingRequest: null });
    step.clearFailures(new Set([gone]));
    step.requestNext();
  } else {
    step.set({ pendingRequest: null, draftsWaiting: false });
    step.requestNext();
  }
}

/** Results are matched by id; their order does not matter. */
export function onResults(step: Transition, response: SubmitResult): void {
  const { state } = step;
  if (state.pendingRequest !== "submit") {
    step.report("unexpected", "a submit_events_result without a submit_events");
    return;
  }
  const accepted: Accepted[] = [];
  const refused: DraftRejected[] = [];
  for (const each of response.results) {
    const at = Math.trunc(each.status_updated_at);
    if (each.status === "committed" && each.committed_id !== null) {
      accepted.push({ id: each.id, committedId: each.committed_id, statusUpdatedAt: at });
    } else if (each.status === "rejected") {
      refused.push(rejected(each.id, each.reason || "rejected", fieldErrors(each.errors), at || null));
    }
  }
  step.set({
    pendingRequest: null,
    submitted: [],
    singleSubmits: Math.max(0, state.singleSubmits - 1),
    batchMax: Math.max(1, Math.min(state.limits.max_batch_size, state.batchMax * 2)),
  });
  for (const each of accepted) step.noteCommittedId(each.committedId);
  const answered = new Set([...accepted, ...refused].map((each) => each.id));
  onAnswered(step, answered);
  const missing = state.submitted.filter((id) => !answered.has(id)).length;
  if (missing) step.violation(`a result that leaves out ${missing} of its drafts`);
  step.countTail(accepted.length);
  step.apply(applying({ accepted, refused, cursors: step.liveCursors() }));
}

/** The server refuses the request as a whole: find the draft at fault by sending each alone.
 *
 * The drafts of a transaction are rejected together.
 */
export function onRefused(step: Transition, code: string, message: string, errors: FieldError[]): void {
  const { submitted: ids, submittedBatch, singleSubmits } = step.state;
  step.set({ pendingRequest: null, submitted: [] });
  if (ids.length > 1 && !submittedBatch) {
    step.set({ singleSubmits: ids.length });
    step.requestNext();
  } else if (ids.length) {
    step.set({ singleSubmits: Math.max(0, singleSubmits - 1) });
    onAnswered(step, new Set(ids));
    reject(step, ids, code, errors.length ? errors : [{ field: "", message }]);
  } else {
    step.requestNext();
  }
}

export function onError(step: Transition, error: ErrorMessage): void {
  const errors = isObject(error.details) ? fieldErrors(error.details["errors"]) : [];
  onRefused(step, error.code, error.message, errors);
}
