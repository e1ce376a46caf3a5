/** Transactions: drafts that are stored, shown, sent and answered as a whole (CLIENT-17).
 *
 * They are sent as one atomic batch (EXT-10), and never in parts. In the views they stand next to each other and are
 * shown together: where one does not fit, in any of their partitions, none is shown.
 */

import { byteLength, ENVELOPE_BYTES } from "./codec.js";
import { TransactionRefused } from "./errors.js";
import type { Extension } from "./extension.js";
import { itemOf } from "./outgoing.js";
import type { NewDraft } from "./store/log.js";
import type { DraftRecord } from "./store/types.js";
import { UNFIT } from "./sync/drafts.js";
import type { Submitted, SubmitNext } from "./sync/inputs-effects.js";
import { atomicMax, type SyncState } from "./sync/state.js";
import { PartitionView, type Entry } from "./view/partition-view.js";

/** A view that shows the drafts of one transaction together, or none of them. */
export class TransactionView extends PartitionView {
  /** The transactions that do not fit in another partition. */
  hidden: ReadonlySet<number> = new Set();
  /** The transactions with a draft that does not fit here. */
  readonly unfit = new Set<number>();

  /** Show the drafts of these transactions no more, and those that were hidden before again. */
  hide(batches: ReadonlySet<number>): void {
    const before = this.hidden;
    this.hidden = batches;
    const start = this.entries.findIndex(({ batch }) => batch !== undefined && before.has(batch) !== batches.has(batch));
    if (start >= 0) {
      const above = this.entries.slice(start);
      this.rollback(start);
      this.applyAll(above);
    }
  }

  protected override whole(start: number): number {
    const batch = this.entries[start]?.batch;
    let first = start;
    while (batch !== undefined && this.entries[first - 1]?.batch === batch) first -= 1;
    return first;
  }

  protected override rollback(start: number): void {
    for (const { batch } of this.entries.slice(start)) if (batch !== undefined) this.unfit.delete(batch);
    super.rollback(start);
  }

  protected override add(each: Entry): void {
    const { batch } = each;
    if (batch === undefined) {
      super.add(each);
    } else if (this.unfit.has(batch) || this.hidden.has(batch)) {
      each.mark = this.state.mark();
      this.entries.push(each);
      this.#leave(each);
    } else {
      super.add(each);
      if (!each.shown) this.#leaveOut(batch);
    }
  }

  /** The last entry does not fit: undo the others of its transaction. */
  #leaveOut(batch: number): void {
    this.unfit.add(batch);
    const first = this.whole(this.entries.length - 1);
    this.state.rollback((this.entries[first] as Entry).mark);
    for (const each of this.entries.slice(first)) {
      each.mark = this.state.mark();
      this.#leave(each);
    }
  }

  #leave(each: Entry): void {
    each.shown = false;
    this.tracker?.leftOut(each.key);
  }
}

export class Transactions implements Extension {
  readonly name = "atomic";
  readonly types = [];
  readonly View = TransactionView;

  /** Refuse a transaction that the server, as far as it is known, cannot take. */
  check(drafts: readonly NewDraft[], state: SyncState | undefined): void {
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

  /** All drafts of a transaction that are pending; what the server has sent back already is committed. */
  next(drafts: readonly DraftRecord[], effect: SubmitNext): [Submitted, string] {
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

  /** Hide the transactions that do not fit in one of their partitions in all of them; the partitions whose views changed.
   *
   * In the order of their drafts: whether one fits depends on those before it alone.
   */
  showWhole(views: ReadonlyMap<string, TransactionView>, pending: Iterable<DraftRecord>): string[] {
    const changed = new Set<string>();
    const hide = (name: string, view: TransactionView, batches: ReadonlySet<number>): void => {
      view.hide(batches);
      changed.add(name);
    };
    for (const [name, view] of views) if (view.hidden.size) hide(name, view, new Set());
    const spanning = new Map<number, Set<string>>();
    for (const { batch, partitions } of pending) {
      if (batch === undefined) continue;
      const names = spanning.get(batch) ?? new Set<string>();
      for (const name of partitions) if (views.has(name)) names.add(name);
      spanning.set(batch, names);
    }
    for (const [batch, names] of spanning) {
      const among = [...names].map((name) => [name, views.get(name) as TransactionView] as const);
      if (!among.some(([, view]) => view.unfit.has(batch))) continue;
      for (const [name, view] of among) if (!view.unfit.has(batch)) hide(name, view, new Set([...view.hidden, batch]));
    }
    return [...changed];
  }
}

/** Transactions for one client: `extensions: [transactions()]`. */
export const transactions = (): Transactions => new Transactions();
