/** Drafts the server fails on: found, set aside and sent again later, while the others go on (CLIENT-08).
 *
 * A server that answers a submit with server_error, or closes with 1011, may fail on one of its drafts every time.
 * After FAILURES_MAX such failures of one submit its drafts are sent one at a time, and a draft that fails as often
 * alone is set aside: it stays pending, because its outcome is unknown, and is left out of submits until its retry is
 * due. The drafts of a transaction count as one.
 *
 * A server can also fail on everything for a while. So the first result after drafts were set aside makes their
 * retries due at once, in their order, and an answer for one of them makes the retries of all others due. A connection
 * that is lost in any other way says nothing about a draft and does not count.
 */

import { CLOSE_SERVER_ERROR } from "../wire.js";
import type { SetAsideDraft } from "./state.js";
import type { Transition } from "./transition.js";

/** Failures of one submit, and then of one draft, before it is acted on: a restart of a server causes one or two. */
const FAILURES_MAX = 3;

export const SET_ASIDE = "draft_set_aside";

/** Whether the connection was lost because the server failed on a submit. */
export function isServerFailure(step: Transition, code: number | null): boolean {
  const { state } = step;
  if (state.pendingRequest !== "submit" || !state.submitted.length) return false;
  return state.failure === "server_error" || (state.failure === null && code === CLOSE_SERVER_ERROR);
}

/** The server failed on the submitted drafts. */
export function onServerFailure(step: Transition): void {
  const { state } = step;
  const { submitted: ids } = state;
  if (ids.length > 1 && !state.submittedBatch) {
    const batchFailures = state.batchFailures + 1;
    step.set({ batchFailures });
    if (batchFailures >= FAILURES_MAX) step.set({ singleSubmits: ids.length });
    return;
  }
  const id = ids[0] as string;
  const draft = state.setAsideDrafts.get(id);
  if (draft !== undefined) {
    const waitMs = Math.min(state.options.draftRetryCapMs, 2 * draft.waitMs);
    setAside(step, ids, { reason: draft.reason, retryAt: step.now + waitMs, waitMs, proven: true });
    return;
  }
  const failures = (state.draftFailures.get(id) ?? 0) + 1;
  step.set({ draftFailures: new Map([...state.draftFailures, [id, failures]]) });
  if (failures >= FAILURES_MAX) {
    const reason = `server_error: the server failed ${failures} times when this draft was sent to it`;
    const waitMs = state.options.draftRetryBaseMs;
    step.set({ singleSubmits: Math.max(0, state.singleSubmits - 1) });
    step.report(SET_ASIDE, `${JSON.stringify(id)}: ${reason}; it stays pending and is tried again`);
    setAside(step, ids, { reason, retryAt: step.now + waitMs, waitMs, proven: false });
  }
}

/** Set one draft aside, or those of one transaction. */
function setAside(step: Transition, ids: readonly string[], draft: SetAsideDraft): void {
  const entries = ids.map((id) => [id, draft] as const);
  step.set({ setAsideDrafts: new Map([...step.state.setAsideDrafts, ...entries]) });
  step.emit({ kind: "WakeAt", at: draft.retryAt });
}

/** The server answered for these drafts, so it works: drafts it failed on before are due for a retry. */
export function onAnswered(step: Transition, ids: ReadonlySet<string>): void {
  step.set({ batchFailures: 0 });
  const retryAll = [...ids].some((id) => step.state.setAsideDrafts.has(id));
  step.clearFailures(ids);
  if (step.state.setAsideDrafts.size) {
    const drafts = [...step.state.setAsideDrafts].map(
      ([id, draft]) =>
        [id, retryAll || !draft.proven ? { ...draft, retryAt: step.now, proven: true } : draft] as const,
    );
    step.set({ setAsideDrafts: new Map(drafts) });
  }
}

/** The program wants a set-aside draft sent now. */
export function onRetry(step: Transition, id: string): void {
  const draft = step.state.setAsideDrafts.get(id);
  if (draft !== undefined) {
    step.set({ setAsideDrafts: new Map([...step.state.setAsideDrafts, [id, { ...draft, retryAt: step.now }]]) });
  }
  step.requestNext();
}

/** Set a timer for the next retry of a set-aside draft. */
export function scheduleRetry(step: Transition): void {
  const times = [...step.state.setAsideDrafts.values()].map((draft) => draft.retryAt).filter((at) => at > step.now);
  if (times.length) step.emit({ kind: "WakeAt", at: Math.min(...times) });
}
