/** React hooks for a client: each gives what the client shows now and renders again when that changes. */

import type { Draft, HistoryPage, Json, JsonObject, Present, Rejected, Status, SyncClient } from "@unisono/client";
import {
  createContext,
  createElement,
  useCallback,
  useContext,
  useEffect,
  useState,
  useSyncExternalStore,
  type ReactNode,
} from "react";

const Context = createContext<SyncClient | null>(null);

/** Gives a client to the hooks below it. */
export function SyncProvider({ client, children }: { client: SyncClient; children?: ReactNode }): ReactNode {
  return createElement(Context.Provider, { value: client }, children);
}

/** The client of the nearest SyncProvider. */
export function useSyncClient(): SyncClient {
  const client = useContext(Context);
  if (client === null) throw new Error("there is no SyncProvider above this component");
  return client;
}

/** Read something of the client whenever an event of one of these types happens. */
function useClient<T>(types: readonly string[], read: (client: SyncClient) => T, partition?: string): T {
  const client = useSyncClient();
  const key = types.join();
  const subscribe = useCallback(
    (changed: () => void) =>
      client.subscribe((event) => {
        if (!key.split(",").includes(event.type)) return;
        if (partition === undefined || !("partition" in event) || event.partition === partition) changed();
      }),
    [client, key, partition],
  );
  const snapshot = () => read(client);
  return useSyncExternalStore(subscribe, snapshot, snapshot);
}

/** The state of a partition, with this client's drafts; undefined until the client follows it. */
export function useView<T = Json>(partition: string): T | undefined {
  const name = partition.normalize("NFC");
  return useClient(["change", "status"], (client) => (client.shows(name) ? (client.view(name) as T) : undefined), name);
}

const pending = (client: SyncClient) => client.pending();
const rejected = (client: SyncClient) => client.rejected();
const status = (client: SyncClient) => client.getStatus();

/** The drafts the server has not answered yet, oldest first. */
export const usePending = (): readonly Draft[] => useClient(["drafts", "status"], pending);

/** The drafts the server refused, with its reasons. */
export const useRejected = (): readonly Rejected[] => useClient(["drafts", "status"], rejected);

/** Where the client stands. */
export const useStatus = (): Status => useClient(["status"], status);

/** Everybody else who is in a partition now; needs a client with `extensions: [presence()]`.
 *
 * With a `value`, such as a name and a cursor, the others see it as long as the component is mounted.
 */
export function usePresence(partition: string, value?: Json): readonly Present[] {
  const client = useSyncClient();
  const name = partition.normalize("NFC");
  const text = value === undefined ? null : JSON.stringify(value);
  useEffect(() => {
    if (text !== null) client.presence(name).set(JSON.parse(text) as Json);
  }, [client, name, text]);
  const says = text !== null;
  useEffect(() => (says ? () => client.presence(name).clear() : undefined), [client, name, says]);
  return useClient(["presence"], (each) => each.presence(name).others, name);
}

/** What can be taken back and done again in a partition, or in any; needs a client with `extensions: [treeUndo()]`.
 *
 * `undoable` and `redoable` are the events that `undo` and `redo` are about, null when there is none.
 */
export function useUndo(partition?: string): {
  readonly undoable: JsonObject | null;
  readonly redoable: JsonObject | null;
  undo(): Promise<Draft[]>;
  redo(): Promise<Draft[]>;
} {
  const client = useSyncClient();
  const types = ["drafts", "change", "status"];
  return {
    undoable: useClient(types, (each) => each.undoable(partition)),
    redoable: useClient(types, (each) => each.redoable(partition)),
    undo: () => client.undo(partition),
    redo: () => client.redo(partition),
  };
}

/** The newest events of a partition, `limit` of them; needs a client with `extensions: [history()]`.
 *
 * Read again with every change of the partition; null until the first time.
 */
export function useHistory(partition: string, limit = 20): HistoryPage | null {
  const client = useSyncClient();
  const name = partition.normalize("NFC");
  const [page, setPage] = useState<HistoryPage | null>(null);
  useEffect(() => {
    let asked = 0;
    const read = () => {
      const mine = (asked += 1);
      client.history(name, { limit }).then(
        (found) => mine === asked && setPage(found),
        () => undefined, // offline, and nothing stored: what was read last stays
      );
    };
    const end = client.subscribe((event) => {
      const mine = event.type === "change" && event.partition === name;
      if (mine || (event.type === "status" && event.status.phase === "live" && !asked)) read();
    });
    if (client.shows(name)) read();
    return () => {
      asked = -1;
      end();
    };
  }, [client, name, limit]);
  return page;
}
