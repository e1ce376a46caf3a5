/** The state of one partition as this client sees it: committed events, then drafts (CLIENT-03).
 *
 * A view is a settled base, the fold of committed events up to some point, and above it entries in view order: first
 * committed events by committed_id, then drafts by (draft_clock, id). Each entry remembers the mark of the state before
 * it, so a change at one place undoes and re-applies only what comes after that place.
 *
 * Committed entries that can no longer be preceded by anything (at or below `known`) are settled into the base by the
 * hundred, because settling forgets every mark and the entries above must be applied again.
 *
 * A draft that does not fit the state it meets is left out of the view and stays pending: the server decides.
 */

import { byCodePoints } from "../partitions.js";
import { EVENT_TYPE, type Model, type ModelState } from "../model/model.js";
import type { FieldError, Json, JsonObject } from "../wire.js";

/** Committed entries that can be undone. */
const SETTLE_EVERY = 256;

/** Where an entry stands: committed events (0) before drafts (1), then by number, then by id. */
export type Key = readonly [0 | 1, number, string];

export const committedKey = (committedId: number): Key => [0, committedId, ""];
export const draftKey = (draftClock: number, id: string): Key => [1, draftClock, id];

const compare = (a: Key, b: Key): number => a[0] - b[0] || a[1] - b[1] || byCodePoints(a[2], b[2]);

/** `batch`: of the drafts of one transaction, which stand next to each other. */
export interface Entry {
  key: Key;
  readonly event: JsonObject;
  batch: number | undefined;
  mark: number;
  shown: boolean;
}

export const entry = (key: Key, event: JsonObject, batch?: number): Entry => ({
  key,
  event,
  batch,
  mark: 0,
  shown: false,
});

/** Hears how the entries of a view are applied: how some of them are taken back is worked out then. */
export interface ViewTracker {
  /** Let `change` apply an entry. */
  apply(key: Key, event: JsonObject, state: ModelState, change: () => boolean): boolean;
  /** An entry that was applied is shown no more. */
  leftOut(key: Key): void;
}

export class PartitionView {
  readonly state: ModelState;
  protected entries: Entry[] = [];
  sinceSnapshot = 0;

  /** `folded`: the base holds exactly the committed events up to it. */
  constructor(
    readonly model: Model,
    state: ModelState | null = null,
    public folded = 0,
    protected readonly tracker: ViewTracker | null = null,
  ) {
    this.state = state ?? model.empty();
  }

  /** Put one event of the history into the base; only before anything was amended. */
  fold(committedId: number, event: JsonObject): void {
    this.model.replay(this.state, event);
    this.folded = committedId;
    this.sinceSnapshot += 1;
  }

  /** Add and remove entries; false, and no change, when one belongs below the base: rebuild the view.
   *
   * An entry that is there already is passed over. `became` says which of the removed drafts are which of the events.
   */
  amend(known: number, given: Entry[], gone: readonly Key[] = [], became: readonly (readonly [Key, Key])[] = []): boolean {
    if (given.some(({ key }) => key[0] === 0 && key[1] <= this.folded)) return false;
    const promoted = this.#promote(became);
    const added = given.filter(({ key }) => !this.#find(key)[1]);
    const removed = gone.filter((key) => !promoted.some((other) => compare(key, other) === 0) && this.#find(key)[1]);
    if (added.length || removed.length) {
      const places = [...added.map(({ key }) => key), ...removed].map((key) => this.#find(key)[0]);
      const start = this.whole(Math.min(...places));
      const above = this.entries.slice(start).filter(({ key }) => !removed.some((other) => compare(key, other) === 0));
      above.push(...added);
      above.sort((a, b) => compare(a.key, b.key));
      this.rollback(start);
      this.applyAll(above);
    }
    this.#settle(known);
    return true;
  }

  /** The first of the entries that are shown together with the one at `start`. */
  protected whole(start: number): number {
    return start;
  }

  /** Turn the oldest drafts into the events they became, where no order changes: the state stays the same. */
  #promote(became: readonly (readonly [Key, Key])[]): Key[] {
    const promoted: Key[] = [];
    if (!became.length) return promoted;
    const first = this.#find(draftKey(0, ""))[0];
    let last = first ? (this.entries[first - 1] as Entry).key : committedKey(this.folded);
    const ordered = [...became].sort((a, b) => compare(a[0], b[0]));
    for (const [index, [place, becomes]] of ordered.entries()) {
      const draft = this.entries[first + index];
      if (!draft || compare(draft.key, place) !== 0 || !draft.shown || compare(becomes, last) <= 0) break;
      draft.key = last = becomes;
      draft.batch = undefined;
      promoted.push(place);
    }
    return promoted;
  }

  /** Move into the base what is certain, once it is worth applying again what is above it. */
  #settle(known: number): void {
    const settled = this.#after(committedKey(known));
    const above = this.entries.slice(settled);
    if (settled < Math.max(SETTLE_EVERY, above.length)) return;
    this.rollback(settled);
    this.folded = (this.entries.at(-1) as Entry).key[1];
    this.sinceSnapshot += settled;
    this.entries = [];
    this.state.settle();
    this.applyAll(above);
  }

  /** Roll back to the state before the entry at `start`. */
  protected rollback(start: number): void {
    const first = this.entries[start];
    if (first) {
      this.state.rollback(first.mark);
      this.entries.splice(start);
    }
  }

  protected applyAll(entries: readonly Entry[]): void {
    for (const each of entries) this.add(each);
  }

  /** Apply one more entry. */
  protected add(each: Entry): void {
    const { key, event } = each;
    const change = () => (key[0] === 0 ? this.model.replay(this.state, event) : this.#show(event));
    each.mark = this.state.mark();
    each.shown = this.tracker ? this.tracker.apply(key, event, this.state, change) : change();
    this.entries.push(each);
  }

  /** Let a check see events that are not entries yet; `end` undoes them. */
  pretend(event: JsonObject, marks: Map<PartitionView, number>): void {
    if (!marks.has(this)) marks.set(this, this.state.mark());
    this.#show(event);
  }

  mark(): number {
    return this.state.mark();
  }

  end(mark: number): void {
    this.state.rollback(mark);
  }

  #show(event: JsonObject): boolean {
    if (this.refusals(event).length) return false;
    try {
      this.model.apply(this.state, event);
      return true;
    } catch {
      return false; // the reducer left the state as it was
    }
  }

  /** The refusals of an event on this state, as the server would judge it. */
  refusals(event: JsonObject): FieldError[] {
    const canonical = event["type"] === EVENT_TYPE;
    if (canonical !== (this.model.profile === "canonical")) {
      return [{ field: "event.type", message: `is not an event of the profile ${this.model.profile}` }];
    }
    const errors = this.model.shape(event);
    return errors.length ? errors : this.model.refusals(this.state, event);
  }

  /** The state as plain JSON that shares nothing with it. */
  dump(): Json {
    return this.state.dump();
  }

  /** The committed state up to `known` as text, with its committed_id; null when it is too deep to write. */
  base(known: number): { committedId: number; state: string } | null {
    const first = this.#after(committedKey(known));
    const above = this.entries.slice(first);
    const committedId = first ? (this.entries[first - 1] as Entry).key[1] : this.folded;
    this.rollback(first);
    let state: string | null = null;
    try {
      state = JSON.stringify(this.state.dump());
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
    }
    this.applyAll(above);
    if (state === null) return null;
    this.sinceSnapshot = -first; // those still entries are counted again when they are settled
    return { committedId, state };
  }

  /** Where a key is or would be, and whether it is there. */
  #find(key: Key): [number, boolean] {
    let low = 0;
    let high = this.entries.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (compare((this.entries[middle] as Entry).key, key) < 0) low = middle + 1;
      else high = middle;
    }
    const found = this.entries[low];
    return [low, found !== undefined && compare(found.key, key) === 0];
  }

  #after(key: Key): number {
    const [at, there] = this.#find(key);
    return there ? at + 1 : at;
  }
}
