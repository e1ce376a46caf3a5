/** A store in IndexedDB: durable, and shared by the tabs of one browser. */

import { StoreError } from "../errors.js";
import { KEYS, type Backend, type EventRecord, type Table, type Tables, type Transaction } from "./types.js";

export interface IndexedDbStoreOptions {
  /** Part of the database's name: one for each application and account. */
  readonly name?: string;
  /** Another implementation, for tests. */
  readonly indexedDB?: IDBFactory;
}

const TABLES = Object.keys(KEYS) as Table[];

const answered = <R>(request: IDBRequest<R>): Promise<R> =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new StoreError("IndexedDB failed"));
  });

export class IndexedDbBackend implements Backend {
  readonly durable = true;
  shared: string;
  readonly #name: string;
  readonly #factory: IDBFactory | undefined;
  #database: IDBDatabase | null = null;

  constructor(options: IndexedDbStoreOptions) {
    this.#name = this.shared = options.name ?? "default";
    this.#factory = options.indexedDB ?? globalThis.indexedDB;
  }

  /** Loaded where it is needed only: a browser that refuses storage has nothing for use offline either. */
  async refused(): Promise<Backend> {
    return (await import("./memory.js")).createMemoryStore();
  }

  async open(clientId: string): Promise<void> {
    if (!this.#factory) throw new TypeError("there is no IndexedDB here");
    this.shared = `${this.#name}/${clientId}`;
    const request = this.#factory.open(`unisono/${this.shared}`, 1);
    request.onupgradeneeded = () => {
      for (const table of TABLES) {
        const made = request.result.createObjectStore(table, { keyPath: KEYS[table] });
        if (table === "events") {
          made.createIndex("id", "id", { unique: true });
          made.createIndex("places", "places", { multiEntry: true });
        }
      }
    };
    const database = await answered(request);
    // Another version of the program wants to change the database: let go of it.
    database.onversionchange = () => database.close();
    this.#database = database;
  }

  async run<R>(write: boolean, body: (transaction: Transaction) => Promise<R>, sync = false): Promise<R> {
    if (this.#database === null) throw new StoreError("the store is not open");
    const options: IDBTransactionOptions = { durability: sync ? "strict" : "relaxed" };
    const transaction = this.#database.transaction(TABLES, write ? "readwrite" : "readonly", options);
    const done = new Promise<void>((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error ?? new StoreError("the transaction was aborted"));
    });
    done.catch(() => undefined);
    let result: R;
    try {
      result = await body(new IndexedDbTransaction(transaction));
    } catch (error) {
      try {
        transaction.abort();
      } catch {
        // It has failed already.
      }
      throw error;
    }
    await done;
    return result;
  }

  close(): Promise<void> {
    this.#database?.close();
    this.#database = null;
    return Promise.resolve();
  }
}

class IndexedDbTransaction implements Transaction {
  constructor(readonly transaction: IDBTransaction) {}

  #table(table: Table): IDBObjectStore {
    return this.transaction.objectStore(table);
  }

  get<T extends Table>(table: T, key: string | number): Promise<Tables[T] | undefined> {
    return answered(this.#table(table).get(key)) as Promise<Tables[T] | undefined>;
  }

  all<T extends Table>(table: T): Promise<Tables[T][]> {
    return answered(this.#table(table).getAll()) as Promise<Tables[T][]>;
  }

  eventById(id: string): Promise<EventRecord | undefined> {
    return answered(this.#table("events").index("id").get(id)) as Promise<EventRecord | undefined>;
  }

  eventsOf(partition: string, after: number, upto: number, limit: number): Promise<EventRecord[]> {
    const range = IDBKeyRange.bound([partition, after], [partition, upto], true);
    const count = limit === Infinity ? undefined : limit;
    return answered(this.#table("events").index("places").getAll(range, count)) as Promise<EventRecord[]>;
  }

  newestOf(partition: string, before: number, limit: number): Promise<EventRecord[]> {
    const range = IDBKeyRange.bound([partition, 0], [partition, before], true, true);
    const request = this.#table("events").index("places").openCursor(range, "prev");
    const found: EventRecord[] = [];
    return new Promise((resolve, reject) => {
      request.onsuccess = () => {
        const cursor = request.result;
        if (cursor && found.length < limit) {
          found.push(cursor.value as EventRecord);
          cursor.continue();
        } else resolve(found);
      };
      request.onerror = () => reject(request.error);
    });
  }

  put<T extends Table>(table: T, row: Tables[T]): void {
    this.#table(table).put(row);
  }

  delete(table: Table, key: string | number): void {
    this.#table(table).delete(key);
  }

  clear(table: Table): void {
    this.#table(table).clear();
  }
}

/** A store in this browser's IndexedDB. */
export const createIndexedDbStore = (options: IndexedDbStoreOptions = {}): Backend => new IndexedDbBackend(options);
