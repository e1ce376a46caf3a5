/** What one tab shows of the store: drafts and views, brought up to date change by change.
 *
 * Every write to the store has a number. Changes are applied in the order of their numbers, whoever made them; where
 * one is missing for a while, as when the tab that made it died before it could say so, all is read again.
 */

import type { Config } from "../config.js";
import { UnknownPartition } from "../errors.js";
import type { Model } from "../model/model.js";
import { parseEvent } from "../store/apply.js";
import type { EventLog } from "../store/log.js";
import type { Change, DraftRecord } from "../store/types.js";
import type { Transactions, TransactionView } from "../transactions.js";
import type { FieldError, Json, JsonObject } from "../wire.js";
import { committedKey, draftKey, entry, PartitionView, type Entry, type Key, type ViewTracker } from "./partition-view.js";

/** How long a missing change is waited for. */
const GAP_MS = 250;

/** What a program is told of a change. */
export interface Applied {
  /** The partitions whose views are others now. */
  readonly partitions: readonly string[];
  readonly settled: Change["settled"];
  readonly rejected: readonly DraftRecord[];
  /** Whether other drafts came or went. */
  readonly drafts: boolean;
}

/** Hears how the views apply the drafts of this tab, and what they became. */
export interface Tracker {
  /** For the view of one partition. */
  of(partition: string): ViewTracker;
  settled(events: Change["settled"]): void;
}

/** What it needs of its session. */
export interface ReplicaHost {
  readonly config: Config;
  readonly log: EventLog;
  /** Of the model that folds the events. */
  readonly label: string;
  onApplied(applied: Applied): void;
  fail(error: unknown): void;
}

interface OpenView {
  view: PartitionView;
  known: number;
  revision: number;
  dump: { revision: number; value: Json } | null;
  /** The length of the last state that was stored. */
  snapshotChars: number;
}

const draftEntry = (draft: DraftRecord): Entry =>
  entry(draftKey(draft.draftClock, draft.id), parseEvent(draft.event), draft.batch);

export class Replica {
  readonly pending = new Map<string, DraftRecord>();
  readonly rejected = new Map<string, DraftRecord>();
  readonly #views = new Map<string, OpenView>();
  readonly #waiting = new Map<number, Change>();
  readonly #waiters: [number, () => void][] = [];
  #revision = -1;
  #gap: ReturnType<typeof setTimeout> | null = null;
  #work: Promise<void> = Promise.resolve();
  #closed = false;
  readonly #failed = (error: unknown) => this.host.fail(error);

  constructor(
    readonly host: ReplicaHost,
    readonly model: Model,
    readonly transactions: Transactions | undefined,
    readonly tracker: Tracker | undefined,
  ) {}

  get partitions(): string[] {
    return [...this.#views.keys()];
  }

  /** Read everything from the store, also again. */
  reload(): Promise<void> {
    return this.#serially(() => this.#reload());
  }

  async #reload(): Promise<void> {
    const before = new Map([...this.pending, ...this.rejected]);
    const { notes, drafts } = await this.host.log.load();
    this.#revision = notes.revision;
    this.pending.clear();
    this.rejected.clear();
    for (const draft of drafts) (draft.reason === null ? this.pending : this.rejected).set(draft.id, draft);
    const gone = [...before.keys()].filter((id) => !this.pending.has(id) && !this.rejected.has(id));
    const settled = await this.host.log.settled(gone);
    this.tracker?.settled(settled);
    for (const name of this.#views.keys()) await this.#open(name);
    for (const number of [...this.#waiting.keys()]) if (number <= this.#revision) this.#waiting.delete(number);
    const rejected = [...this.rejected.values()].filter((draft) => before.get(draft.id)?.reason === null);
    this.host.onApplied({ partitions: this.partitions, settled, rejected, drafts: true });
    this.#release();
  }

  /** Show a partition. */
  open(name: string): Promise<void> {
    return this.#serially(async () => {
      if (!this.#views.has(name)) await this.#open(name);
    });
  }

  drop(name: string): void {
    this.#views.delete(name);
    this.#showTransactionsWhole();
  }

  async #open(name: string): Promise<void> {
    const View = this.transactions?.View ?? PartitionView;
    const tracker = this.tracker?.of(name) ?? null;
    let view: PartitionView = new View(this.model, null, 0, tracker);
    let snapshotChars = 0;
    const above: { committedId: number; event: JsonObject }[] = [];
    const row = await this.host.log.read(
      name,
      this.host.label,
      (record) => {
        if (record.label !== this.host.label) return false;
        try {
          view = new View(this.model, this.model.load(JSON.parse(record.state)), record.committedId, tracker);
          snapshotChars = record.state.length;
          return true;
        } catch {
          return false; // the events are folded instead, or fetched again
        }
      },
      (events, known) => {
        for (const { committedId, event } of events) {
          if (committedId <= known) view.fold(committedId, event);
          else above.push({ committedId, event });
        }
        view.state.settle(); // so that the journal of a long history stays small
      },
    );
    const known = row?.known ?? 0;
    const drafts = [...this.pending.values()].filter((draft) => draft.partitions.includes(name));
    view.amend(known, [
      ...above.map(({ committedId, event }) => entry(committedKey(committedId), event)),
      ...drafts.map(draftEntry),
    ]);
    const revision = (this.#views.get(name)?.revision ?? 0) + 1;
    this.#views.set(name, { view, known, revision, dump: null, snapshotChars });
    this.#showTransactionsWhole();
  }

  // -- changes ------------------------------------------------------------------------------------------------

  /** Take a change, from this tab or another; resolves when everything up to it is shown. */
  receive(change: Change): Promise<void> {
    if (change.revision > this.#revision) this.#waiting.set(change.revision, change);
    const shown = new Promise<void>((resolve) => this.#waiters.push([change.revision, resolve]));
    this.#serially(() => this.#catchUp()).catch(this.#failed);
    return shown;
  }

  async #catchUp(): Promise<void> {
    for (;;) {
      const next = this.#waiting.get(this.#revision + 1);
      if (!next) break;
      this.#waiting.delete(next.revision);
      this.#revision = next.revision;
      await this.#apply(next);
    }
    this.#release();
    if (this.#waiting.size && this.#gap === null && !this.#closed) {
      this.#gap = setTimeout(() => {
        this.#gap = null;
        if (this.#waiting.size && !this.#closed) this.reload().then(() => this.#serially(() => this.#catchUp())).catch(this.#failed);
      }, GAP_MS);
    }
  }

  #release(): void {
    for (let at = this.#waiters.length - 1; at >= 0; at -= 1) {
      const [revision, resolve] = this.#waiters[at] as [number, () => void];
      if (revision <= this.#revision) {
        this.#waiters.splice(at, 1);
        resolve();
      }
    }
  }

  async #apply(change: Change): Promise<void> {
    const before = new Map<string, DraftRecord>();
    for (const id of [...change.gone, ...change.rejected.map((draft) => draft.id)]) {
      const draft = this.pending.get(id);
      if (draft) before.set(id, draft);
    }
    for (const id of change.gone) {
      this.pending.delete(id);
      this.rejected.delete(id);
    }
    for (const draft of change.drafts) this.pending.set(draft.id, draft);
    for (const draft of change.rejected) {
      this.pending.delete(draft.id);
      this.rejected.set(draft.id, draft);
    }
    this.tracker?.settled(change.settled);
    const partitions: string[] = [];
    for (const [name, open] of this.#views) {
      const row = change.rows.find((each) => each.name === name);
      if (row) open.known = row.known;
      if (change.rebuild === null || change.rebuild.includes(name)) {
        await this.#open(name);
        partitions.push(name);
      } else {
        const outcome = this.#amend(name, open, change, before);
        if (outcome === "rebuild") await this.#open(name);
        if (outcome !== "same") partitions.push(name);
        else if (row) open.view.amend(open.known, []);
      }
    }
    partitions.push(...this.#showTransactionsWhole().filter((name) => !partitions.includes(name)));
    for (const name of partitions) {
      const open = this.#views.get(name) as OpenView;
      await this.#snapshot(name, open, Math.max(this.host.config.options.snapshotEvery, open.snapshotChars / 500));
    }
    const drafts = change.drafts.length + change.gone.length + change.rejected.length > 0;
    this.host.onApplied({ partitions, settled: change.settled, rejected: change.rejected, drafts });
  }

  /** Hide the transactions that do not fit in one of their partitions; the views that changed. */
  #showTransactionsWhole(): string[] {
    if (!this.transactions) return [];
    const views = new Map([...this.#views].map(([name, { view }]) => [name, view as TransactionView]));
    const changed = this.transactions.showWhole(views, this.pending.values());
    for (const name of changed) this.#of(name).revision += 1;
    return changed;
  }

  /** Bring one view up to date: it is the same when the change is not about it, or must be rebuilt. */
  #amend(
    name: string,
    open: OpenView,
    change: Change,
    before: ReadonlyMap<string, DraftRecord>,
  ): "same" | "amended" | "rebuild" {
    const added = (change.events.get(name) ?? []).map((each) => entry(committedKey(each.committedId), each.event));
    const mine = (draft: DraftRecord | undefined): draft is DraftRecord => draft?.partitions.includes(name) === true;
    const gone: Key[] = [];
    const became: [Key, Key][] = [];
    const removed = [...change.gone, ...change.rejected.map((draft) => draft.id)];
    const settled = new Map(change.settled.map((each) => [each.id, each.committedId]));
    for (const id of removed) {
      const draft = before.get(id);
      if (!mine(draft)) continue;
      const key = draftKey(draft.draftClock, id);
      gone.push(key);
      const committedId = settled.get(id);
      if (committedId !== undefined && added.some((each) => each.key[1] === committedId)) {
        became.push([key, committedKey(committedId)]);
      }
    }
    for (const draft of change.drafts.filter(mine)) {
      added.push(draftEntry(draft));
    }
    if (!added.length && !gone.length) return "same";
    if (!open.view.amend(open.known, added, gone, became)) return "rebuild";
    open.revision += 1;
    return "amended";
  }

  async #snapshot(name: string, open: OpenView, due: number): Promise<void> {
    if (open.view.sinceSnapshot < due) return;
    const base = open.view.base(open.known);
    if (base === null) {
      open.view.sinceSnapshot = 0;
      return;
    }
    open.snapshotChars = base.state.length;
    await this.host.log.putSnapshot({ partition: name, label: this.host.label, ...base });
  }

  /** One after the other: reading and changing never overlap. */
  #serially<R>(body: () => Promise<R>): Promise<R> {
    const done = this.#work.then(body);
    this.#work = done.then(
      () => undefined,
      () => undefined,
    );
    return done;
  }

  // -- reading ------------------------------------------------------------------------------------------------

  #of(name: string): OpenView {
    const open = this.#views.get(name);
    if (open === undefined) throw new UnknownPartition(name);
    return open;
  }

  /** The view of a partition, where it is shown. */
  view(name: string): PartitionView | undefined {
    return this.#views.get(name)?.view;
  }

  /** The state of a partition now; the same object until it changes. */
  dump(name: string): Json {
    const open = this.#of(name);
    if (open.dump?.revision !== open.revision) open.dump = { revision: open.revision, value: open.view.dump() };
    return (open.dump as { value: Json }).value;
  }

  /** Judge events in order, each by the views that those before it leave: for each its refusals.
   *
   * Those of one group are taken together or not at all.
   */
  judge(groups: readonly (readonly { partitions: readonly string[]; event: JsonObject }[])[]): FieldError[][] {
    const marks = new Map<PartitionView, number>();
    try {
      return groups.map((group) => {
        const taken = new Map<PartitionView, number>();
        for (const { partitions, event } of group) {
          const views = partitions.map((name) => this.#views.get(name)?.view).filter((view) => view !== undefined);
          const errors = views.map((view) => view.refusals(event)).find((found) => found.length);
          if (errors) {
            for (const [view, mark] of taken) view.end(mark);
            return errors;
          }
          for (const view of views) {
            if (!marks.has(view)) marks.set(view, view.mark());
            view.pretend(event, taken);
          }
        }
        return [];
      });
    } finally {
      for (const [view, mark] of marks) view.end(mark);
    }
  }

  /** Store what would be folded again at the next start. */
  async close(): Promise<void> {
    this.#closed = true;
    if (this.#gap !== null) clearTimeout(this.#gap);
    await this.#serially(async () => {
      for (const [name, open] of this.#views) await this.#snapshot(name, open, Math.max(50, open.snapshotChars / 5000));
    });
  }
}
