/** The effects of one transaction on the store: each event once, drafts settled by their events, cursors moved. */

import { canonical } from "../canonical.js";
import { isObject } from "../codec.js";
import { StoreContradiction } from "../errors.js";
import type { Apply, StartState } from "../sync/inputs-effects.js";
import type { CommittedEvent, JsonObject } from "../wire.js";
import type { DraftRecord, EventRecord, PartitionRow, PlacedEvent, Transaction } from "./types.js";

/** A change under construction. */
export class ChangeDraft {
  drafts: DraftRecord[] = [];
  gone: string[] = [];
  settled: { id: string; committedId: number; statusUpdatedAt: number }[] = [];
  rejected: DraftRecord[] = [];
  events = new Map<string, PlacedEvent[]>();
  rows: PartitionRow[] = [];
  rebuild: string[] | null = [];
}

/** The event as a model reads it; {} for what is no object, which has no meaning. */
export function parseEvent(text: string): JsonObject {
  const value: unknown = JSON.parse(text);
  return isObject(value) ? value : {};
}

/** Drop a partition's events up to an id, and the state made of them; an event of other partitions stays. */
export async function dropEvents(transaction: Transaction, name: string, upto: number): Promise<void> {
  transaction.delete("snapshots", name);
  for (const record of await transaction.eventsOf(name, 0, upto, Infinity)) {
    const places = record.places.filter(([other]) => other !== name);
    if (places.length) transaction.put("events", { ...record, places });
    else transaction.delete("events", record.committedId);
  }
}

/** The effects of one transaction. */
export class ApplyWork {
  readonly #events = new Map<number, EventRecord | undefined>();
  readonly #ids = new Map<string, EventRecord | undefined>();
  readonly #drafts = new Map<string, DraftRecord | undefined>();

  constructor(
    readonly transaction: Transaction,
    readonly change: ChangeDraft,
    readonly rows: Map<string, PartitionRow>,
    readonly label: string,
    readonly clientId: string,
    readonly userId: string | null,
  ) {}

  async rewind(everything: boolean): Promise<void> {
    const { transaction } = this;
    transaction.clear("snapshots");
    if (everything) {
      transaction.clear("events");
      transaction.clear("bases");
      this.#events.clear();
      this.#ids.clear();
      this.change.events.clear();
      this.change.rebuild = null;
    }
    for (const row of await transaction.all("partitions")) {
      const rewound = { ...row, cursor: 0, ...(everything && { known: 0, floor: 0 }) };
      if (this.rows.has(row.name)) this.rows.set(row.name, rewound);
      else transaction.put("partitions", rewound);
    }
  }

  async apply(effect: Apply): Promise<void> {
    for (const [name, base] of effect.starts) await this.#start(name, base);
    await this.#prefetch(effect);
    for (const event of effect.events) this.#take(event);
    for (const { id, committedId, statusUpdatedAt } of effect.accepted) {
      const draft = this.#drafts.get(id);
      if (draft) {
        const by = { clientId: this.clientId, userId: this.userId };
        this.#insert(committedId, id, draft.partitions, by, draft.event, statusUpdatedAt, parseEvent(draft.event));
        this.#settle(draft, committedId, statusUpdatedAt);
      }
    }
    for (const { id, reason, errors, statusUpdatedAt } of effect.refused) {
      const draft = this.#drafts.get(id);
      if (draft && draft.reason === null) {
        const rejected = { ...draft, reason, errors, statusUpdatedAt };
        this.#drafts.set(id, rejected);
        this.transaction.put("drafts", rejected);
        this.change.rejected.push(rejected);
      }
    }
    for (const [name, cursor] of effect.cursors) {
      const row = this.rows.get(name);
      if (row) this.rows.set(name, { ...row, cursor, known: Math.max(row.known, cursor) });
    }
  }

  /** Replace what is stored of a partition up to its new floor by a base, or by nothing. */
  async #start(name: string, base: StartState | null): Promise<void> {
    const row = this.rows.get(name);
    if (row === undefined) return;
    const floor = base?.committedId ?? 0;
    // Events above the base stay, if none is missing there.
    const keeps = floor >= row.floor;
    await dropEvents(this.transaction, name, keeps ? floor : Infinity);
    this.#events.clear();
    this.#ids.clear();
    this.transaction.delete("bases", name);
    if (base !== null) {
      const state = JSON.stringify(base.state);
      this.transaction.put("bases", { partition: name, committedId: floor, label: this.label, state });
    }
    this.rows.set(name, { ...row, floor, known: keeps ? Math.max(row.known, floor) : floor });
    this.change.rebuild?.push(name);
  }

  /** Ask for all that may be there at once: a transaction waits for each answer. */
  async #prefetch(effect: Apply): Promise<void> {
    const { transaction } = this;
    const ids = new Set([...effect.events, ...effect.accepted, ...effect.refused].map((each) => each.id));
    const numbers = new Set([
      ...effect.events.map((event) => event.committed_id),
      ...effect.accepted.map((each) => each.committedId),
    ]);
    const fetch = async <K, V>(known: Map<K, V>, key: K, ask: Promise<V>) => known.set(key, await ask);
    await Promise.all([
      ...[...numbers].filter((id) => !this.#events.has(id)).map((id) => fetch(this.#events, id, transaction.get("events", id))),
      ...[...ids].filter((id) => !this.#ids.has(id)).map((id) => fetch(this.#ids, id, transaction.eventById(id))),
      ...[...ids].filter((id) => !this.#drafts.has(id)).map((id) => fetch(this.#drafts, id, transaction.get("drafts", id))),
    ]);
  }

  #take(event: CommittedEvent): void {
    const { id, committed_id: committedId } = event;
    const at = Math.trunc(event.status_updated_at);
    const body = isObject(event.event) ? event.event : {};
    const by = { clientId: event.client_id, userId: event.user_id };
    this.#insert(committedId, id, event.partitions, by, JSON.stringify(event.event), at, body);
    const draft = this.#drafts.get(id);
    if (draft && isSame(draft, event)) this.#settle(draft, committedId, at);
  }

  #settle(draft: DraftRecord, committedId: number, statusUpdatedAt: number): void {
    const { id } = draft;
    this.#drafts.set(id, undefined);
    this.transaction.delete("drafts", id);
    this.change.gone.push(id);
    this.change.settled.push({ id, committedId, statusUpdatedAt });
  }

  #insert(
    committedId: number,
    id: string,
    partitions: readonly string[],
    by: Pick<EventRecord, "clientId" | "userId">,
    event: string,
    statusUpdatedAt: number,
    body: JsonObject,
  ): void {
    const names = [...new Set(partitions)].filter((name) => {
      const row = this.rows.get(name);
      return row !== undefined && committedId > row.floor;
    });
    if (!names.length) return;
    const stored = this.#events.get(committedId);
    const other = this.#ids.get(id);
    if ((stored && stored.id !== id) || (other && other.committedId !== committedId)) {
      const found = (stored ?? other) as EventRecord;
      throw new StoreContradiction(
        `event ${JSON.stringify(id)} came as ${committedId}, but ${JSON.stringify(found.id)} is stored as ${found.committedId}`,
      );
    }
    const fresh = names.filter((name) => !stored?.places.some(([known]) => known === name));
    if (!fresh.length) return;
    const places = [...(stored?.places ?? []), ...fresh.map((name) => [name, committedId] as const)];
    const record = stored
      ? { ...stored, places }
      : { committedId, id, ...by, partitions, event, statusUpdatedAt, places };
    this.transaction.put("events", record);
    this.#events.set(committedId, record);
    this.#ids.set(id, record);
    for (const name of fresh) {
      const list = this.change.events.get(name);
      if (list) list.push({ committedId, event: body });
      else this.change.events.set(name, [{ committedId, event: body }]);
      // Late: states from there on lack it.
      if (committedId <= (this.rows.get(name) as PartitionRow).known) this.transaction.delete("snapshots", name);
    }
  }
}

/** Whether a committed event with a draft's id is that draft, not another event with the same id. */
function isSame(draft: DraftRecord, event: CommittedEvent): boolean {
  try {
    const names = new Set(event.partitions);
    const samePlace = names.size === draft.partitions.length && draft.partitions.every((name) => names.has(name));
    return samePlace && canonical(event.event) === draft.event;
  } catch {
    return false;
  }
}
