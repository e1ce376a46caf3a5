/** React hooks for a client: each gives what the client shows now and renders again when that changes. */

import type { Draft, Json, Rejected, Status, SyncClient } from "@unisono/client";
import { createContext, createElement, useCallback, useContext, useSyncExternalStore, type ReactNode } from "react";

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
        if (event.type !== "change" || partition === undefined || event.partition === partition) changed();
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
