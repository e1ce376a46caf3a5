/** The tabs of one browser: one of them, the leader, has the connection; all of them read and write the store.
 *
 * The leader is the tab that holds a Web Lock. When it closes or crashes the browser gives the lock to another. Tabs
 * tell each other over a BroadcastChannel what they wrote; a message that is lost with its tab is found by the gap in
 * the numbers of the writes. Each tab also holds a lock of its own as long as it lives: who waits for that lock learns
 * of its end, however it ends.
 */

import { newId } from "./ids.js";
import type { LeaderStatus } from "./status.js";
import type { Change } from "./store/types.js";

export type TabMessage =
  | { readonly type: "change"; readonly change: Change }
  /** The leader's part of the status, and which model it folds by. */
  | { readonly type: "status"; readonly status: LeaderStatus; readonly label: string }
  /** A tab has come, or a leader: who leads tells its status, the others what they follow. */
  | { readonly type: "hello"; readonly leader: boolean }
  | { readonly type: "follow"; readonly partitions: readonly string[] }
  | { readonly type: "remove"; readonly partition: string }
  | { readonly type: "retry"; readonly id: string }
  | { readonly type: "pause" | "resume" }
  /** What an extension tells itself in the other tabs. */
  | { readonly type: "extension"; readonly name: string; readonly data: unknown };

export interface Tabs {
  /** Names this tab among those that share the store. */
  readonly id: string;
  /** Resolves when this tab leads, which it does until `close`; or when it is closed before. */
  lead(): Promise<void>;
  send(message: TabMessage): void;
  /** Resolves when that tab is closed, or has crashed; at once when this one is closed. */
  gone(id: string): Promise<void>;
  close(): void;
}

/** Alone: this program leads, and there is nobody to tell. */
const ALONE: Tabs = {
  id: "",
  lead: () => Promise.resolve(),
  send: () => undefined,
  gone: () => new Promise(() => undefined),
  close: () => undefined,
};

/** The tabs that share a store, where the browser can tell them apart. */
export async function joinTabs(name: string | null, receive: (message: TabMessage) => void): Promise<Tabs> {
  const locks = globalThis.navigator?.locks as LockManager | undefined;
  if (name === null || !locks || typeof BroadcastChannel !== "function") return ALONE;
  const id = newId();
  const abort = new AbortController();
  const releases: (() => void)[] = [];
  const lockName = `unisono/${name}`;
  /** Resolves when this tab has a lock, which it holds until it ends; or when it ends before. */
  const hold = (lock: string) =>
    new Promise<void>((resolve) => {
      locks
        .request(lock, { signal: abort.signal }, () => {
          resolve();
          return new Promise<void>((done) => releases.push(done));
        })
        .catch(() => resolve()); // ended by `close`
    });
  await hold(`${lockName}/${id}`);
  const channel = new BroadcastChannel(lockName);
  channel.onmessage = (event: MessageEvent<TabMessage>) => receive(event.data);
  return {
    id,
    lead: () => hold(lockName),
    send: (message) => channel.postMessage(message),
    gone: (other) => locks.request(`${lockName}/${other}`, { signal: abort.signal }, () => undefined).catch(() => undefined),
    close() {
      abort.abort();
      for (const release of releases) release();
      channel.close();
    },
  };
}
