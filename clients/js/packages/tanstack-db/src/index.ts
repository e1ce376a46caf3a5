/** A TanStack DB collection whose rows are part of the view of a partition.
 *
 *     const beds = createCollection(unisonoCollectionOptions({ client, partition: "garden", ...treeRows("outline") }));
 *
 * The client stays the one that knows: rows come from its view, drafts included, and a change of the collection is
 * submitted as events. What the view refuses rejects the change; what the server refuses later leaves the view, and the
 * collection with it, and is among the client's rejected drafts.
 */

import type { Json, JsonObject, SyncClient } from "@unisono/client";

/** How rows are found in a view, and which event each change of one is. A change without an event is refused. */
export interface RowMapping<T extends object> {
  rows(view: Json): Iterable<T>;
  getKey(row: T): string;
  inserted?(row: T): JsonObject;
  updated?(key: string, changes: Partial<T>): JsonObject;
  deleted?(key: string): JsonObject;
}

export interface UnisonoCollectionOptions<T extends object> extends RowMapping<T> {
  readonly client: SyncClient;
  readonly partition: string;
  /** The collection's name; the partition's unless it is given. */
  readonly id?: string;
}

/** The part of TanStack DB's types that is used, so that this package compiles with any release of it. */
interface SyncParameters<T extends object> {
  begin(): void;
  write(message: { type: "insert" | "update"; value: T } | { type: "delete"; key: string }): void;
  commit(): unknown;
  markReady(): void;
}

interface Mutations<T extends object> {
  transaction: { mutations: readonly { modified: T; changes: Partial<T>; key: unknown }[] };
}

export interface UnisonoCollectionConfig<T extends object> {
  id: string;
  getKey: (row: T) => string;
  sync: { sync: (parameters: SyncParameters<T>) => () => void; rowUpdateMode: "full" };
  onInsert: (given: Mutations<T>) => Promise<void>;
  onUpdate: (given: Mutations<T>) => Promise<void>;
  onDelete: (given: Mutations<T>) => Promise<void>;
}

/** What `createCollection` of TanStack DB takes. */
export function unisonoCollectionOptions<T extends object>(options: UnisonoCollectionOptions<T>): UnisonoCollectionConfig<T> {
  const { client, rows, getKey } = options;
  const partition = options.partition.normalize("NFC");

  /** Several changes of one transaction are stored together, or none of them. */
  async function submit(events: (JsonObject | undefined)[]): Promise<void> {
    await client.submitEvents(
      events.map((event) => {
        if (event === undefined) throw new TypeError("this collection has no event for such a change");
        return { partition, event };
      }),
    );
  }

  function sync({ begin, write, commit, markReady }: SyncParameters<T>): () => void {
    let known = new Map<string, string>();
    let ready = false;
    const refresh = () => {
      if (!client.shows(partition)) return;
      const now = new Map<string, string>();
      begin();
      for (const row of rows(client.view(partition))) {
        const key = getKey(row);
        const text = JSON.stringify(row);
        now.set(key, text);
        if (known.get(key) !== text) write({ type: known.has(key) ? "update" : "insert", value: row });
      }
      for (const key of known.keys()) if (!now.has(key)) write({ type: "delete", key });
      commit();
      known = now;
      // A partition that was never fetched is empty, which is no answer yet.
      const { phase, cursors } = client.getStatus();
      if (!ready && (phase === "live" || (cursors[partition] ?? 0) > 0)) {
        ready = true;
        markReady();
      }
    };
    const end = client.subscribe((event) => {
      if (event.type === "change" ? event.partition === partition : event.type === "status" && !ready) refresh();
    });
    refresh();
    return end;
  }

  return {
    id: options.id ?? partition,
    getKey,
    sync: { sync, rowUpdateMode: "full" },
    onInsert: ({ transaction }) => submit(transaction.mutations.map(({ modified }) => options.inserted?.(modified))),
    onUpdate: ({ transaction }) =>
      submit(transaction.mutations.map(({ key, changes }) => options.updated?.(String(key), changes))),
    onDelete: ({ transaction }) => submit(transaction.mutations.map(({ key }) => options.deleted?.(String(key)))),
  };
}

/** The items of a tree as rows, each with its id; where an item stands in the tree is not part of its row. */
export function treeRows<T extends { id: string }>(target: string): RowMapping<T> {
  const event = (type: string, payload: object): JsonObject => ({ type, payload: { target, ...payload } as JsonObject });
  return {
    rows(view) {
      const { items = {} } = ((view as JsonObject)[target] ?? {}) as { items?: Record<string, JsonObject> };
      return Object.entries(items).map(([id, item]) => ({ ...item, id }) as unknown as T);
    },
    getKey: ({ id }) => id,
    inserted: (row) => event("treePush", { value: row, options: { position: "last" } }),
    updated: (id, changes) => event("treeUpdate", { value: changes, options: { id } }),
    deleted: (id) => event("treeDelete", { options: { id } }),
  };
}
