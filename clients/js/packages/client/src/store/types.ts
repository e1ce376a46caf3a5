/** What a store holds, and the few operations a place to keep it must offer. */

import type { LogIdentity } from "../sync/inputs-effects.js";
import type { FieldError, JsonObject } from "../wire.js";

/** One row that says whose store it is and what it knows of the server. `revision` counts the writes. */
export interface NotesRow {
  key: "notes";
  format: 1;
  clientId: string;
  clock: number;
  revision: number;
  model: { version: number | null; digest: string | null } | null;
  log: LogIdentity | null;
}

/** `known` is the highest the cursor ever was; the base replaces the events up to `floor`. */
export interface PartitionRow {
  readonly name: string;
  readonly cursor: number;
  readonly known: number;
  readonly floor: number;
}

/** One stored draft; `event` is canonical JSON. `reason` is null until it is rejected.
 *
 * `batch` is the same for the drafts of one transaction: the draftClock of its first. Others have none.
 */
export interface DraftRecord {
  readonly id: string;
  readonly draftClock: number;
  readonly partitions: readonly string[];
  readonly event: string;
  readonly createdAt: number;
  readonly reason: string | null;
  readonly errors: readonly FieldError[];
  readonly statusUpdatedAt: number | null;
  readonly batch?: number;
}

/** A committed event; `places` are the followed partitions it is in, each with its committed_id. */
export interface EventRecord {
  readonly committedId: number;
  readonly id: string;
  readonly clientId: string;
  readonly partitions: readonly string[];
  readonly event: string;
  readonly statusUpdatedAt: number;
  /** Who submitted it, where the server knows; a store of an earlier release has events without. */
  readonly userId?: string | null;
  readonly places: readonly (readonly [string, number])[];
}

/** The state of a partition after `committedId` as JSON text, made by the model that `label` names. */
export interface StateRecord {
  readonly partition: string;
  readonly committedId: number;
  readonly label: string;
  readonly state: string;
}

export interface Tables {
  notes: NotesRow;
  partitions: PartitionRow;
  drafts: DraftRecord;
  events: EventRecord;
  snapshots: StateRecord;
  bases: StateRecord;
}

export type Table = keyof Tables;

/** The field by which a table is ordered and read. */
export const KEYS = {
  notes: "key",
  partitions: "name",
  drafts: "id",
  events: "committedId",
  snapshots: "partition",
  bases: "partition",
} as const satisfies { [T in Table]: keyof Tables[T] };

/** One transaction; whatever its body throws undoes it. */
export interface Transaction {
  get<T extends Table>(table: T, key: string | number): Promise<Tables[T] | undefined>;
  all<T extends Table>(table: T): Promise<Tables[T][]>;
  eventById(id: string): Promise<EventRecord | undefined>;
  /** The events of a partition above one id and up to another, in order, at most so many. */
  eventsOf(partition: string, after: number, upto: number, limit: number): Promise<EventRecord[]>;
  /** The events of a partition below an id, the newest first, at most so many. */
  newestOf(partition: string, before: number, limit: number): Promise<EventRecord[]>;
  put<T extends Table>(table: T, row: Tables[T]): void;
  delete(table: Table, key: string | number): void;
  clear(table: Table): void;
}

/** A place to keep a store: in memory, in a file, in IndexedDB. */
export interface Backend {
  /** False where nothing outlives the page or process. */
  readonly durable: boolean;
  /** What names the store among the tabs of one browser; null where tabs cannot share it. */
  readonly shared: string | null;
  /** What takes its place when it cannot be opened. */
  refused?(): Promise<Backend>;
  open(clientId: string): Promise<void>;
  /** Run one transaction; with `write`, resolves when it is stored. `sync`: it must survive a power cut. */
  run<R>(write: boolean, body: (transaction: Transaction) => Promise<R>, sync?: boolean): Promise<R>;
  close(): Promise<void>;
}

/** A store as a program names it: `createMemoryStore()`, `createIndexedDbStore()`, `createFileStore(path)`. */
export type Store = Backend;

/** An event as a view takes it. */
export interface PlacedEvent {
  readonly committedId: number;
  readonly event: JsonObject;
}

/** What one write changed, for every tab that shows the store. */
export interface Change {
  readonly revision: number;
  readonly drafts: readonly DraftRecord[];
  /** Drafts that are in the store no more: settled, discarded, or submitted again. */
  readonly gone: readonly string[];
  readonly settled: readonly { readonly id: string; readonly committedId: number; readonly statusUpdatedAt: number }[];
  readonly rejected: readonly DraftRecord[];
  readonly events: ReadonlyMap<string, readonly PlacedEvent[]>;
  readonly rows: readonly PartitionRow[];
  /** Partitions whose views are to be rebuilt; null is all of them. */
  readonly rebuild: readonly string[] | null;
}
