/** One transition of a client's sync: the state, replaced step by step, and the effects so far.
 *
 * `requestNext` is the one place that decides which request is made when none is unanswered.
 */

import { byteLength, ENVELOPE_BYTES } from "../codec.js";
import { byCodePoints } from "../partitions.js";
import { applying, type Apply, type Effect } from "./inputs-effects.js";
import { active, atomicMax, TOO_MANY, type SyncCycle, type SyncState } from "./state.js";

/** A copy of a set or map without some of its members. */
export const setWithout = <T>(all: Iterable<T>, gone: { has(each: T): boolean }): Set<T> =>
  new Set([...all].filter((each) => !gone.has(each)));

export const mapWithout = <K, V>(all: ReadonlyMap<K, V>, gone: { has(each: K): boolean }): Map<K, V> =>
  new Map([...all].filter(([key]) => !gone.has(key)));

const NEW_CYCLE = { syncTo: null, discardAnswer: false, endAfterPage: false, overflow: false, snapshots: false };

export class Transition {
  readonly effects: Effect[] = [];

  constructor(
    public state: SyncState,
    readonly now: number,
  ) {}

  set(changes: Partial<SyncState>): void {
    this.state = { ...this.state, ...changes };
  }

  emit(effect: Effect): void {
    this.effects.push(effect);
  }

  report(code: string, message: string): void {
    this.emit({ kind: "ReportProblem", code, message });
  }

  /** Report what the server may not do, and leave it. */
  violation(message: string): void {
    this.report("protocol_violation", message);
    this.set({ failure: "protocol_violation" });
    this.emit({ kind: "DropConnection" });
  }

  // -- partitions ---------------------------------------------------------------------------------------------

  /** Leave out the partitions that are too many for one connection, or for one message to this server. */
  leaveOutExcess(): void {
    const { state } = this;
    const bytesMax = state.limits.max_message_bytes;
    const room = bytesMax === null ? Infinity : Math.floor((bytesMax - ENVELOPE_BYTES) / 2);
    const wanted = [...state.cursors.keys()].filter((name) => !state.refusedPartitions.has(name));
    let taken = 0;
    let used = 0;
    for (const name of wanted.slice(0, Math.max(1, state.limits.max_subscriptions))) {
      used += byteLength(JSON.stringify(name)) + 1;
      if (used > room) break;
      taken += 1;
    }
    const leftOut = new Map(wanted.slice(taken).map((name) => [name, TOO_MANY]));
    this.set({
      leftOut,
      live: setWithout(state.live, leftOut),
      tailFetchDue: setWithout(state.tailFetchDue, leftOut),
    });
  }

  // -- storing ------------------------------------------------------------------------------------------------

  /** Store, and continue once it is stored; with nothing to store, at once. Cursors only ever rise. */
  apply(effect: Apply): void {
    const { state } = this;
    const moved = new Map([...effect.cursors].filter(([name, upto]) => upto > (state.cursors.get(name) ?? upto)));
    if (state.setAsideDrafts.size || state.draftFailures.size) {
      this.clearFailures(new Set(effect.events.map((event) => event.id)));
    }
    const { events, accepted, refused, starts } = effect;
    if (events.length || accepted.length || refused.length || moved.size || starts.size) {
      const highest = [...moved].map(
        ([name, upto]) => [name, Math.max(upto, state.highestCursors.get(name) ?? 0)] as const,
      );
      this.set({
        storing: true,
        cursors: new Map([...state.cursors, ...moved]),
        highestCursors: new Map([...state.highestCursors, ...highest]),
      });
      this.emit({ ...effect, cursors: moved });
    } else {
      this.requestNext();
    }
  }

  /** Drop the failures counted for drafts that have an outcome now. */
  clearFailures(ids: ReadonlySet<string>): void {
    this.set({
      setAsideDrafts: mapWithout(this.state.setAsideDrafts, ids),
      draftFailures: mapWithout(this.state.draftFailures, ids),
    });
  }

  noteCommittedId(committedId: number): void {
    if (committedId > this.state.highestSeenId) this.set({ highestSeenId: committedId });
  }

  /** The cursors of the live partitions, as far as they are known without a page (CLIENT-14). */
  liveCursors(): Map<string, number> {
    const { state } = this;
    if (!state.orderedDelivery || state.pendingRequest === "submit") return new Map();
    return new Map([...state.live].map((name) => [name, state.highestSeenId]));
  }

  /** Without ordered delivery, fetch what lies above the cursors by pages once enough events have come. */
  countTail(events: number): void {
    if (!this.state.orderedDelivery && events) {
      this.set({ tailEvents: this.state.tailEvents + events });
      if (this.state.tailEvents >= this.state.options.tailEventsMax) {
        this.set({ tailEvents: 0, tailFetchDue: this.state.live });
      }
    }
  }

  /** End the cycle: store its last page, then the buffered broadcasts, in order (CLIENT-06).
   *
   * When the buffer overflowed, nothing is live until another cycle has fetched what was dropped.
   */
  finishCycle(page: Apply): void {
    const { cycle, buffer } = this.state;
    this.set({ cycle: null, buffer: [], bufferedBytes: 0 });
    if (cycle?.overflow) {
      this.set({ live: new Set() });
      this.apply(page);
      return;
    }
    const buffered = [...buffer].sort((a, b) => a.committed_id - b.committed_id);
    this.countTail(buffered.length);
    const cursors = new Map(page.cursors);
    for (const [name, upto] of this.liveCursors()) cursors.set(name, Math.max(upto, cursors.get(name) ?? 0));
    this.apply(applying({ events: [...page.events, ...buffered], cursors, starts: page.starts }));
  }

  // -- requests -----------------------------------------------------------------------------------------------

  beginRequest(pendingRequest: "connect" | "sync" | "submit"): void {
    this.set({ pendingRequest, requestedAt: this.now });
    this.emit({ kind: "WakeAt", at: this.now + this.state.options.answerTimeoutMs });
  }

  /** Make the next request, if one may be made: continue the cycle, start one, or submit. */
  requestNext(): void {
    const { state } = this;
    if ((state.phase !== "syncing" && state.phase !== "live") || state.failure !== null) return;
    const names = active(state);
    const behind = names.filter((name) => !state.live.has(name));
    if (behind.length) this.set({ phase: "syncing" });
    if (state.pendingRequest !== null || state.storing || state.retryAt !== null) return;
    if (state.cycle !== null) {
      this.#continueCycle(state.cycle);
      return;
    }
    if (!behind.length) this.set({ phase: "live" });
    const toFetch = behind.length ? behind : names.filter((name) => state.tailFetchDue.has(name));
    if (toFetch.length) this.#startCycle(toFetch);
    else if (state.subscribed.some((name) => !names.includes(name))) this.#unsubscribe(names);
    else this.#submit();
  }

  /** Send one set-aside draft whose retry is due, otherwise the oldest of the other drafts. */
  #submit(): void {
    const { state } = this;
    const bytesMax = state.limits.max_message_bytes;
    const due = [...state.setAsideDrafts].find(([, draft]) => draft.retryAt <= this.now)?.[0];
    if (due !== undefined) {
      this.beginRequest("submit");
      this.emit({ kind: "SubmitNext", itemsMax: 1, bytesMax, only: due, without: new Set(), atomicMax: atomicMax(state) });
    } else if (state.draftsWaiting) {
      this.beginRequest("submit");
      const itemsMax = state.singleSubmits ? 1 : state.batchMax;
      const without = new Set(state.setAsideDrafts.keys());
      this.emit({ kind: "SubmitNext", itemsMax, bytesMax, without, atomicMax: atomicMax(state) });
    }
  }

  /** Fetch the partitions with the highest cursor first: they are live soonest. Equal cursors go together. */
  #startCycle(toFetch: readonly string[]): void {
    const { state } = this;
    const cursor = (name: string) => state.cursors.get(name) as number;
    const since = toFetch.reduce((highest, name) => Math.max(highest, cursor(name)), 0);
    let group = toFetch.filter((name) => cursor(name) === since);
    const eventsOnly = since > 0 || state.fullHistoryOnly.has(group[0] as string);
    if (!since) group = group.filter((name) => state.fullHistoryOnly.has(name) === eventsOnly);
    const partitions = group.slice(0, state.oneByOne ? 1 : state.namesMax);
    const subscription = state.oneByOne
      ? [...new Set([...state.live, ...partitions])].sort(byCodePoints)
      : active(state);
    const snapshots = state.serverSendsSnapshots && !eventsOnly;
    this.set({ cycle: { ...NEW_CYCLE, partitions, since, subscription, snapshots } });
    this.requestNext();
  }

  /** Tell the server of removed partitions in the next cycle; where none is left, in a sync made for it. */
  #unsubscribe(names: readonly string[]): void {
    if (names.length) {
      this.#startCycle(names);
    } else {
      const { subscribed, highestSeenId } = this.state;
      const partitions = subscribed.slice(0, 1);
      this.set({
        cycle: { ...NEW_CYCLE, partitions, since: highestSeenId, subscription: [], discardAnswer: true },
      });
      this.requestNext();
    }
  }

  #continueCycle(cycle: SyncCycle): void {
    if (cycle.endAfterPage) {
      this.finishCycle(applying());
      return;
    }
    const { limits, options } = this.state;
    const limit = Math.max(limits.sync_limit_min, Math.min(limits.sync_limit_max, options.pageLimit));
    this.beginRequest("sync");
    const { partitions, since, subscription } = cycle;
    const snapshots = cycle.snapshots && cycle.syncTo === null;
    this.emit({ kind: "SendSync", partitions, since, limit, subscription, snapshots });
  }
}
