/** When a problem is one no more. */

import type { Status } from "./config.js";
import { SET_ASIDE } from "./sync/failing-drafts.js";
import { TOO_MANY } from "./sync/state.js";

/** Problems of a connection: over when the client is live. */
const PASSING = [
  "unreachable", "no_answer", "dead_server", "token_failed", "protocol_violation", "unexpected", "stopped",
  "auth_failed", "server_error", "rate_limited",
];

/** Problems of a request: over when nothing is refused any more. */
const REFUSALS = ["forbidden", "validation_failed", "bad_request", TOO_MANY];

export function isOver(
  code: string,
  now: Pick<Status, "phase" | "setAside" | "draftsSetAside">,
  before: Pick<Status, "phase" | "pending">,
): boolean {
  if (now.phase !== "live" || (before.phase === "live" && before.pending)) return false;
  return (
    PASSING.includes(code) ||
    (REFUSALS.includes(code) && !Object.keys(now.setAside).length) ||
    (code === SET_ASIDE && !Object.keys(now.draftsSetAside).length)
  );
}
