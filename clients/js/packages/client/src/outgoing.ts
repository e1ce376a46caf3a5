/** Which drafts go into the next submit: the oldest ones, and those of a transaction together or not at all. */

import { byteLength, ENVELOPE_BYTES, itemPayload } from "./codec.js";
import { TransactionRefused } from "./errors.js";
import type { DraftRecord } from "./store/types.js";
import type { NewDraft } from "./store/log.js";
import { UNFIT } from "./sync/drafts.js";
import type { Submitted, SubmitNext } from "./sync/inputs-effects.js";
import { atomicMax, type SyncState } from "./sync/state.js";

const itemOf = (draft: NewDraft): string => itemPayload(draft.id, draft.partitions, draft.event);

/** The drafts of a draft's transaction among others, oldest first; itself alone without one. */
export function transactionOf(draft: DraftRecord, drafts: Iterable<DraftRecord>): DraftRecord[] {
  if (draft.batch === undefined) return [draft];
  return [...drafts].filter((each) => each.batch === draft.batch).sort((a, b) => a.draftClock - b.draftClock);
}

/** Refuse a transaction that the server, as far as it is known, cannot take (CLIENT-17). */
export function checkTransaction(drafts: readonly NewDraft[], state: SyncState | undefined): void {
  if (state === undefined || state.atomicGranted === null) return;
  const connected = state.phase === "syncing" || state.phase === "live";
  if (connected && !state.atomicGranted) throw new TransactionRefused(UNFIT.atomic_unsupported);
  if (!state.atomicGranted) return;
  const most = atomicMax(state);
  if (drafts.length > most) {
    throw new TransactionRefused(`${drafts.length} events, and the server takes ${most} in one batch`);
  }
  const bytesMax = state.limits.max_message_bytes;
  const size = drafts.reduce((sum, draft) => sum + byteLength(itemOf(draft)) + 1, ENVELOPE_BYTES);
  if (bytesMax !== null && size > bytesMax) throw new TransactionRefused(UNFIT.too_big);
}

/** The answer to SubmitNext, and the payload of the message; empty where nothing is to be sent. */
export function nextSubmit(pending: ReadonlyMap<string, DraftRecord>, effect: SubmitNext): [Submitted, string] {
  const { only } = effect;
  const nothing: Submitted = { kind: "Submitted", ids: [] };
  if (only !== undefined && !pending.has(only)) return [{ ...nothing, gone: only }, ""];
  const items: string[] = [];
  const ids: string[] = [];
  let size = ENVELOPE_BYTES;
  for (const draft of only === undefined ? pending.values() : [pending.get(only) as DraftRecord]) {
    if (items.length >= effect.itemsMax) break;
    if (only === undefined && effect.without.has(draft.id)) continue;
    if (draft.batch !== undefined) {
      if (items.length) break;
      return transaction(transactionOf(draft, pending.values()), effect);
    }
    const item = itemOf(draft);
    size += byteLength(item) + 1;
    if (effect.bytesMax !== null && size > effect.bytesMax) {
      if (!items.length) return [{ ...nothing, tooLarge: draft.id }, ""];
      break;
    }
    items.push(item);
    ids.push(draft.id);
  }
  return [{ kind: "Submitted", ids }, items.length ? `{"events":[${items.join(",")}]}` : ""];
}

/** All drafts of a transaction that are pending; what the server has sent back already is committed. */
function transaction(drafts: readonly DraftRecord[], effect: SubmitNext): [Submitted, string] {
  const ids = drafts.map((draft) => draft.id);
  const unfit = (reason: keyof typeof UNFIT): [Submitted, string] => [
    { kind: "Submitted", ids: [], unfit: { ids, reason } },
    "",
  ];
  if (!effect.atomicMax) return unfit("atomic_unsupported");
  if (drafts.length > effect.atomicMax) return unfit("too_many_events");
  const payload = `{"atomic":true,"events":[${drafts.map(itemOf).join(",")}]}`;
  if (effect.bytesMax !== null && byteLength(payload) + ENVELOPE_BYTES > effect.bytesMax) return unfit("too_big");
  return [{ kind: "Submitted", ids, atomic: true }, payload];
}
