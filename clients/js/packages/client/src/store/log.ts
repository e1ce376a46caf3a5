/** A client's store: committed events with their cursors, drafts and states, one transaction per step.
 *
 * What always holds, also after a crash: every committed event of a partition above its `floor` and up to its `known`
 * is stored, each once; the partition's base replaces those up to the floor. The cursor is in the transaction of its
 * events, so that lost events are fetched again (CLIENT-05).
 */

import { InvalidEvent, StoreError, StoreForeign, UnknownDraft } from "../errors.js";
import type { StoreEffect } from "../sync/inputs-effects.js";
import { ApplyWork, ChangeDraft, dropEvents, parseEvent } from "./apply.js";
import type {
  Backend,
  Change,
  DraftRecord,
  EventRecord,
  NotesRow,
  PartitionRow,
  PlacedEvent,
  StateRecord,
  Transaction,
} from "./types.js";

/** Events read at a time. */
const SLICE = 1000;

/** `together`: the same text for the drafts of one transaction. */
export type NewDraft = Pick<DraftRecord, "id" | "partitions" | "event" | "createdAt"> & { readonly together?: string };

export class EventLog {
  /** Who this client submits as, once the server has said so. */
  userId: string | null = null;

  constructor(
    readonly backend: Backend,
    readonly clientId: string,
  ) {}

  async open(): Promise<void> {
    await this.backend.open(this.clientId);
    try {
      await this.backend.run(true, (transaction) => this.#claim(transaction));
    } catch (error) {
      await this.backend.close();
      throw error;
    }
  }

  /** Make the store this client's, or find that it is. */
  async #claim(transaction: Transaction): Promise<void> {
    const notes = await transaction.get("notes", "notes");
    const { clientId } = this;
    if (notes === undefined) {
      transaction.put("notes", { key: "notes", format: 1, clientId, clock: 0, revision: 0, model: null, log: null });
    } else if (notes.clientId !== clientId || notes.format !== 1) {
      throw new StoreForeign(
        `the store is of client_id ${JSON.stringify(notes.clientId)}, or of another version of this library`,
      );
    }
  }

  /** Run a write and number it. */
  #write(body: (transaction: Transaction, notes: NotesRow, change: ChangeDraft) => Promise<void>, sync: boolean) {
    return this.backend.run(
      true,
      async (transaction): Promise<Change> => {
        const notes = { ...((await transaction.get("notes", "notes")) as NotesRow) };
        notes.revision += 1;
        const change = new ChangeDraft();
        await body(transaction, notes, change);
        transaction.put("notes", notes);
        return { ...change, revision: notes.revision };
      },
      sync,
    );
  }

  // -- drafts -------------------------------------------------------------------------------------------------

  /** Store drafts so that they survive a power cut, each with a draft_clock above all that were ever used (CLIENT-01).
   *
   * `again` names rejected drafts that are submitted again.
   */
  addDrafts(drafts: readonly NewDraft[], again: readonly string[] = []): Promise<Change> {
    return this.#write(async (transaction, notes, change) => {
      for (const id of again) {
        if (!(await transaction.get("drafts", id))?.reason) throw new UnknownDraft(id);
      }
      const taken = new Set<string>();
      const batches = new Map<string, number>();
      for (const { together, ...draft } of drafts) {
        const { id } = draft;
        const known =
          (!again.includes(id) && (await transaction.get("drafts", id))) || (await transaction.eventById(id));
        if (known || taken.has(id)) {
          throw new InvalidEvent([{ field: "id", message: `${JSON.stringify(id)} was given to another event` }]);
        }
        taken.add(id);
        notes.clock += 1;
        if (together !== undefined && !batches.has(together)) batches.set(together, notes.clock);
        const batch = together === undefined ? {} : { batch: batches.get(together) as number };
        const record = { ...draft, draftClock: notes.clock, reason: null, errors: [], statusUpdatedAt: null, ...batch };
        transaction.put("drafts", record);
        change.drafts.push(record);
      }
      change.gone.push(...again);
    }, true);
  }

  /** Forget rejected drafts. */
  discard(ids: readonly string[]): Promise<Change> {
    return this.#write(async (transaction, _notes, change) => {
      for (const id of ids) {
        if (!(await transaction.get("drafts", id))?.reason) throw new UnknownDraft(id);
        transaction.delete("drafts", id);
        change.gone.push(id);
      }
    }, false);
  }

  // -- partitions ---------------------------------------------------------------------------------------------

  /** The row of a partition, made where there is none. One whose base another model made is fetched again. */
  follow(name: string, label: string): Promise<PartitionRow> {
    return this.backend.run(true, async (transaction) => {
      const stored = await transaction.get("partitions", name);
      const base = stored?.floor ? await transaction.get("bases", name) : undefined;
      const row = stored ?? { name, cursor: 0, known: 0, floor: 0 };
      const usable = stored !== undefined && (!stored.floor || base?.label === label);
      const followed = usable ? row : { ...row, cursor: 0 };
      if (!usable) transaction.put("partitions", followed);
      return followed;
    });
  }

  /** Drop a partition and the events that belong to no other one. */
  leave(name: string): Promise<Change> {
    return this.#write(async (transaction) => {
      await dropEvents(transaction, name, Infinity);
      transaction.delete("bases", name);
      transaction.delete("partitions", name);
    }, false);
  }

  // -- committed events ---------------------------------------------------------------------------------------

  /** Perform effects in one transaction, each event once; StoreContradiction and no change where an id differs.
   *
   * `rows` are the followed partitions; `label` is the model of the start states.
   */
  apply(effects: readonly StoreEffect[], rows: ReadonlyMap<string, PartitionRow>, label: string): Promise<Change> {
    return this.#write(async (transaction, notes, change) => {
      const work = new ApplyWork(transaction, change, new Map(rows), label, this.clientId, this.userId);
      for (const effect of effects) {
        switch (effect.kind) {
          case "Apply":
            await work.apply(effect);
            break;
          case "NoteModel":
            notes.model = { version: effect.version, digest: effect.digest };
            break;
          case "NoteLog":
            notes.log = effect.log;
            break;
          case "Rewind":
            notes.model = { version: effect.version, digest: effect.digest };
            await work.rewind(false);
            break;
          case "Reset":
            if (effect.log !== null) notes.log = effect.log;
            await work.rewind(true);
            break;
          default:
            effect satisfies never;
        }
      }
      change.rows = [...work.rows.values()].filter((row) => row !== rows.get(row.name));
      for (const row of change.rows) transaction.put("partitions", row);
    }, false);
  }

  // -- reading ------------------------------------------------------------------------------------------------

  /** What the store knows of the server, and every draft, with the revision they are of. */
  load(): Promise<{ notes: NotesRow; drafts: DraftRecord[] }> {
    return this.backend.run(false, async (transaction) => {
      const [notes, drafts] = await Promise.all([transaction.get("notes", "notes"), transaction.all("drafts")]);
      return { notes: notes as NotesRow, drafts: drafts.sort((a, b) => a.draftClock - b.draftClock) };
    });
  }

  /** Which of these drafts have become events. */
  settled(ids: readonly string[]): Promise<{ id: string; committedId: number; statusUpdatedAt: number }[]> {
    return this.backend.run(false, async (transaction) => {
      const found = await Promise.all(ids.map((id) => transaction.eventById(id)));
      return found.filter((event) => event !== undefined);
    });
  }

  /** Every partition that was ever followed. */
  async partitions(): Promise<string[]> {
    const rows = await this.backend.run(false, (transaction) => transaction.all("partitions"));
    return rows.map((row) => row.name);
  }

  /** A partition from the newest state of this model, or its base: `start` takes the state, `take` each slice. */
  read(
    name: string,
    label: string,
    start: (record: StateRecord) => boolean,
    take: (events: PlacedEvent[], known: number) => void,
  ): Promise<PartitionRow | undefined> {
    return this.backend.run(false, async (transaction) => {
      const row = await transaction.get("partitions", name);
      if (row === undefined) return undefined;
      const snapshot = await transaction.get("snapshots", name);
      const base = await transaction.get("bases", name);
      let after = 0;
      if (snapshot?.label === label && start(snapshot)) after = snapshot.committedId;
      else if (base && start(base)) after = base.committedId;
      for (;;) {
        const slice = await transaction.eventsOf(name, after, Infinity, SLICE);
        if (!slice.length) return row;
        take(slice.map(placed), row.known);
        after = (slice.at(-1) as EventRecord).committedId;
      }
    });
  }

  putSnapshot(record: StateRecord): Promise<void> {
    return this.backend.run(true, async (transaction) => {
      const row = await transaction.get("partitions", record.partition);
      if (row && record.committedId <= row.known) transaction.put("snapshots", record);
    });
  }

  close(): Promise<void> {
    return this.backend.close();
  }
}

const placed = (record: EventRecord): PlacedEvent => ({
  committedId: record.committedId,
  event: parseEvent(record.event),
});


/** Open a store; where the browser refuses it, `refused` hears why, and one in memory takes its place. */
export async function openLog(
  store: Backend,
  clientId: string,
  refused: (error: unknown) => void,
): Promise<EventLog> {
  const log = new EventLog(store, clientId);
  try {
    await log.open();
    return log;
  } catch (error) {
    if (!store.refused || error instanceof StoreError) throw error;
    refused(error);
    const instead = new EventLog(await store.refused(), clientId);
    await instead.open();
    return instead;
  }
}
