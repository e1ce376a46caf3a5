/** The tabs of one browser: one of them, the leader, has the connection; all of them read and write the store.
 *
 * The leader is the tab that holds a Web Lock. When it closes or crashes the browser gives the lock to another. Tabs
 * tell each other over a BroadcastChannel what they wrote; a message that is lost with its tab is found by the gap in
 * the numbers of the writes.
 */

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
  | { readonly type: "pause" | "resume" };

export interface Tabs {
  /** Resolves when this tab leads, which it does until `close`; or when it is closed before. */
  lead(): Promise<void>;
  send(message: TabMessage): void;
  close(): void;
}

/** Alone: this program leads, and there is nobody to tell. */
const ALONE: Tabs = { lead: () => Promise.resolve(), send: () => undefined, close: () => undefined };

/** The tabs that share a store, where the browser can tell them apart. */
export function joinTabs(name: string | null, receive: (message: TabMessage) => void): Tabs {
  const locks = globalThis.navigator?.locks as LockManager | undefined;
  if (name === null || !locks || typeof BroadcastChannel !== "function") return ALONE;
  const channel = new BroadcastChannel(`unisono/${name}`);
  channel.onmessage = (event: MessageEvent<TabMessage>) => receive(event.data);
  const abort = new AbortController();
  let release: () => void = () => undefined;
  return {
    lead: () =>
      new Promise((resolve) => {
        locks
          .request(`unisono/${name}`, { signal: abort.signal }, () => {
            resolve();
            return new Promise<void>((done) => (release = done));
          })
          .catch(() => resolve()); // ended by `close`
      }),
    send: (message) => channel.postMessage(message),
    close() {
      abort.abort();
      release();
      channel.close();
    },
  };
}
