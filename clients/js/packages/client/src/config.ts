/** What a client is made from. */

import { isWellFormed } from "./canonical.js";
import { byteLength } from "./codec.js";
import type { Extension } from "./extension.js";
import { CLIENT_ID_BYTES_MAX } from "./limits.js";
import type { Model } from "./model/model.js";
import { DEFAULTS, type Options } from "./options.js";
import { partitionName } from "./partitions.js";
import type { Store } from "./store/types.js";
import type { JsonObject } from "./wire.js";

/** A token, or what gives one; it is asked again before the last one ends, and when the server refuses it. */
export type Token = string | (() => string | Promise<string>);

/** The part of a WebSocket that a client uses. */
export interface Socket {
  readonly readyState: number;
  onopen: ((event: any) => void) | null;
  onmessage: ((event: any) => void) | null;
  onclose: ((event: any) => void) | null;
  onerror: ((event: any) => void) | null;
  send(data: string): void;
  close(code?: number, reason?: string): void;
}

export type SocketConstructor = new (url: string) => Socket;

export interface SyncClientOptions {
  /** Such as `wss://example.com/sync`. */
  readonly url: string;
  readonly clientId: string;
  readonly token: Token;
  /** `treeModel()` for tree actions, `eventModel(…)` for events of a model. */
  readonly model: Model;
  /** Where drafts and events are kept: `createMemoryStore()`, `createIndexedDbStore()`, `createFileStore(path)`. */
  readonly store: Store;
  /** Followed from the start; left out, those the store has. */
  readonly partitions?: readonly string[];
  /** Bounds and intervals that are not the defaults. */
  readonly options?: Partial<Options>;
  /** The WebSocket to use where there is no global one, as of the package `ws`. */
  readonly WebSocket?: SocketConstructor;
  /** What a program wants besides, such as `presence()`, `transactions()`, `renewal()`, `history()`, `treeUndo()`. */
  readonly extensions?: readonly Extension[];
  /** Share one connection among the tabs of a browser; true unless it is switched off. */
  readonly tabs?: boolean;
  /** Called for everything that happens, as the listeners of `on` are. */
  readonly onEvent?: (event: ClientEvent) => void;
}

/** What became of a draft. */
export interface Committed {
  readonly status: "committed";
  readonly id: string;
  readonly committedId: number;
  readonly statusUpdatedAt: number;
}

export interface Rejected {
  readonly status: "rejected";
  readonly id: string;
  readonly partitions: readonly string[];
  readonly event: JsonObject;
  readonly reason: string;
  readonly errors: readonly { readonly field: string; readonly message: string }[];
  readonly createdAt: number;
  readonly statusUpdatedAt: number | null;
  /** The same for the drafts of one transaction, which are rejected, retried and discarded together. */
  readonly transaction: number | null;
}

/** A committed event. `userId` is the person behind the client, where the server knows it. */
export interface PastEvent {
  readonly id: string;
  readonly committedId: number;
  readonly partitions: readonly string[];
  readonly event: JsonObject;
  readonly clientId: string;
  readonly userId: string | null;
  /** When the server committed it, in ms. */
  readonly statusUpdatedAt: number;
}

/** A stretch of a partition's history, the newest event first.
 *
 * `nextBefore`: ask with this as `before` for the older ones; null where the history begins.
 */
export interface HistoryPage {
  readonly partition: string;
  readonly events: readonly PastEvent[];
  readonly nextBefore: number | null;
}

/** Something that went wrong, last; `code` is an error code of the wire or one of this library's. */
export interface Problem {
  readonly code: string;
  readonly message: string;
  readonly atMs: number;
}

/** One moment of a client.
 *
 * `cursor` is the lowest of `cursors`. `setAside` are partitions that are not followed, with the reason;
 * `draftsSetAside` are pending drafts that the server fails on. `stopped` says why no connection is tried any more.
 * `durable` is false where nothing outlives the page: a store in memory, or storage the browser refuses. `leader`:
 * this tab has the connection.
 */
export interface Status {
  readonly phase: "offline" | "connecting" | "syncing" | "live";
  readonly cursor: number;
  readonly cursors: Readonly<Record<string, number>>;
  readonly pending: number;
  readonly rejected: number;
  readonly setAside: Readonly<Record<string, string>>;
  readonly draftsSetAside: Readonly<Record<string, string>>;
  readonly modelVersion: number | null;
  readonly lastError: Problem | null;
  readonly stopped: string | null;
  readonly durable: boolean;
  readonly leader: boolean;
}

/** What happens in a client. */
export type ClientEvent =
  | { readonly type: "status"; readonly status: Status }
  /** The view of a partition is another now. */
  | { readonly type: "change"; readonly partition: string }
  /** Drafts came or went. */
  | { readonly type: "drafts" }
  | { readonly type: "committed"; readonly outcome: Committed }
  | { readonly type: "rejected"; readonly draft: Rejected }
  /** Somebody came to a partition, left it or says something else. */
  | { readonly type: "presence"; readonly partition: string }
  | ({ readonly type: "problem" } & Problem);

export interface Config extends Omit<SyncClientOptions, "options" | "partitions" | "extensions"> {
  readonly partitions: readonly string[] | null;
  readonly options: Options;
  readonly extensions: readonly Extension[];
}

/** The extension of a name, where the program gave it. */
export const extensionOf = <E extends Extension>(config: Config, name: string): E | undefined =>
  config.extensions.find((each) => each.name === name) as E | undefined;

/** Check what a program gives before anything starts. */
export function configure(given: SyncClientOptions): Config {
  const { url, clientId, token, model, store } = given;
  if (!/^wss?:\/\/./.test(url)) {
    throw new TypeError(`url is an address like wss://example.com/sync, not ${JSON.stringify(url)}`);
  }
  if (typeof clientId !== "string" || !clientId || byteLength(clientId) > CLIENT_ID_BYTES_MAX || !isWellFormed(clientId)) {
    throw new TypeError(`clientId is a string of 1 to ${CLIENT_ID_BYTES_MAX} bytes`);
  }
  if (typeof token !== "function" && (typeof token !== "string" || !token)) {
    throw new TypeError("token is a string, or a function that gives one");
  }
  if (typeof model?.replay !== "function") throw new TypeError("model is treeModel() or eventModel()");
  if (typeof store?.run !== "function") throw new TypeError("store is createMemoryStore() or createIndexedDbStore()");
  const partitions = given.partitions ? [...new Set(given.partitions.map(partitionName))] : null;
  return { ...given, partitions, options: { ...DEFAULTS, ...given.options }, extensions: given.extensions ?? [] };
}
