/** A store in memory: for tests, for programs that start from nothing, and where the browser refuses storage. */

import { KEYS, type Backend, type EventRecord, type Table, type Tables, type Transaction } from "./types.js";

/** Tables as maps, with the two indexes of events. Changes made in a transaction that fails are undone. */
export class MemoryTables implements Transaction {
  protected readonly rows = Object.fromEntries(Object.keys(KEYS).map((name) => [name, new Map()])) as unknown as {
    [T in Table]: Map<string | number, Tables[T]>;
  };
  readonly #ids = new Map<string, number>();
  readonly #places = new Map<string, number[]>();
  #undo: (() => void)[] = [];

  get<T extends Table>(table: T, key: string | number): Promise<Tables[T] | undefined> {
    return Promise.resolve(this.rows[table].get(key));
  }

  all<T extends Table>(table: T): Promise<Tables[T][]> {
    return Promise.resolve([...this.rows[table].values()]);
  }

  eventById(id: string): Promise<EventRecord | undefined> {
    const committedId = this.#ids.get(id);
    return Promise.resolve(committedId === undefined ? undefined : this.rows.events.get(committedId));
  }

  eventsOf(partition: string, after: number, upto: number, limit: number): Promise<EventRecord[]> {
    const ids = this.#places.get(partition) ?? [];
    const found: EventRecord[] = [];
    for (let at = position(ids, after + 1); at < ids.length && found.length < limit; at += 1) {
      if ((ids[at] as number) > upto) break;
      found.push(this.rows.events.get(ids[at] as number) as EventRecord);
    }
    return Promise.resolve(found);
  }

  newestOf(partition: string, before: number, limit: number): Promise<EventRecord[]> {
    const ids = this.#places.get(partition) ?? [];
    const end = position(ids, before);
    const newest = ids.slice(Math.max(0, end - limit), end).reverse();
    return Promise.resolve(newest.map((id) => this.rows.events.get(id) as EventRecord));
  }

  put<T extends Table>(table: T, row: Tables[T]): void {
    this.#set(table, (row as unknown as Record<string, string | number>)[KEYS[table]] as string | number, row);
  }

  delete(table: Table, key: string | number): void {
    this.#set(table, key, undefined);
  }

  clear(table: Table): void {
    for (const key of [...this.rows[table].keys()]) this.#set(table, key, undefined);
  }

  begin(): void {
    this.#undo = [];
  }

  undo(): void {
    for (const undo of this.#undo.splice(0).reverse()) undo();
  }

  #set(table: Table, key: string | number, row: Tables[Table] | undefined, undoing = false): void {
    const rows = this.rows[table] as Map<string | number, Tables[Table]>;
    const before = rows.get(key);
    if (row === undefined) rows.delete(key);
    else rows.set(key, row);
    if (table === "events") this.#index(before as EventRecord | undefined, row as EventRecord | undefined);
    if (!undoing) this.#undo.push(() => this.#set(table, key, before, true));
  }

  #index(before: EventRecord | undefined, row: EventRecord | undefined): void {
    if (before) this.#ids.delete(before.id);
    if (row) this.#ids.set(row.id, row.committedId);
    for (const [name, id] of before?.places ?? []) {
      const ids = this.#places.get(name) ?? [];
      const at = position(ids, id);
      if (ids[at] === id) ids.splice(at, 1);
    }
    for (const [name, id] of row?.places ?? []) {
      let ids = this.#places.get(name);
      if (!ids) this.#places.set(name, (ids = []));
      const at = position(ids, id);
      if (ids[at] !== id) ids.splice(at, 0, id);
    }
  }
}

/** Where `id` is, or would be, in ascending ids; the end is found at once, because most ids are the newest. */
function position(ids: readonly number[], id: number): number {
  if (!ids.length || (ids.at(-1) as number) < id) return ids.length;
  let low = 0;
  let high = ids.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((ids[middle] as number) < id) low = middle + 1;
    else high = middle;
  }
  return low;
}

export class MemoryBackend implements Backend {
  readonly durable: boolean = false;
  readonly shared = null;
  protected readonly tables: MemoryTables = new MemoryTables();
  #last: Promise<unknown> = Promise.resolve();

  open(_clientId: string): Promise<void> {
    return Promise.resolve();
  }

  /** One transaction after the other. */
  run<R>(write: boolean, body: (transaction: Transaction) => Promise<R>, sync = false): Promise<R> {
    const done = this.#last.then(() => this.#run(write, body, sync));
    this.#last = done.catch(() => undefined);
    return done;
  }

  async #run<R>(write: boolean, body: (transaction: Transaction) => Promise<R>, sync: boolean): Promise<R> {
    this.tables.begin();
    try {
      const result = await body(this.tables);
      if (write) await this.commit(sync);
      return result;
    } catch (error) {
      this.tables.undo();
      throw error;
    }
  }

  protected async commit(_sync: boolean): Promise<void> {}

  async close(): Promise<void> {
    await this.#last;
  }
}

export const createMemoryStore = (): Backend => new MemoryBackend();
