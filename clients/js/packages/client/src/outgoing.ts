/** Which drafts go into the next submit: the oldest ones, and those of a transaction together or not at all. */

import { byteLength, ENVELOPE_BYTES, itemPayload } from "./codec.js";
import type { DraftRecord } from "./store/types.js";
import type { NewDraft } from "./store/log.js";
import type { Submitted, SubmitNext } from "./sync/inputs-effects.js";
import type { Transactions } from "./transactions.js";

export const itemOf = (draft: NewDraft): string => itemPayload(draft.id, draft.partitions, draft.event);

/** The drafts of a draft's transaction among others, oldest first; itself alone without one. */
export function transactionOf(draft: DraftRecord, drafts: Iterable<DraftRecord>): DraftRecord[] {
  if (draft.batch === undefined) return [draft];
  return [...drafts].filter((each) => each.batch === draft.batch).sort((a, b) => a.draftClock - b.draftClock);
}

/** The answer to SubmitNext, and the payload of the message; empty where nothing is to be sent.
 *
 * A store may have a transaction of a program that made some; without `transactions` it is rejected whole.
 */
export function nextSubmit(
  pending: ReadonlyMap<string, DraftRecord>,
  effect: SubmitNext,
  transactions: Transactions | undefined,
): [Submitted, string] {
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
      const drafts = transactionOf(draft, pending.values());
      const unfit = { ids: drafts.map(({ id }) => id), reason: "atomic_unsupported" } as const;
      return transactions ? transactions.next(drafts, effect) : [{ ...nothing, unfit }, ""];
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
