export { canonical as canonicalText } from "./canonical.js";
export { createSyncClient, SyncClient } from "./client.js";
export type { Draft, EventInput } from "./submission.js";
export type {
  ClientEvent,
  Committed,
  HistoryPage,
  PastEvent,
  Problem,
  Rejected,
  Socket,
  SocketConstructor,
  Status,
  SyncClientOptions,
  Token,
} from "./config.js";
export * from "./errors.js";
export type { Extension, ExtensionHost } from "./extension.js";
export { history, type History } from "./history.js";
export { newId } from "./ids.js";
export { eventModel, type EventModelOptions, type Functions, type ModelEvent, type Reducers } from "./model/declared.js";
export type { Model, ModelState } from "./model/model.js";
export { treeModel } from "./model/tree.js";
export { DEFAULTS, type Options } from "./options.js";
export { presence, type PartitionPresence, type Presence, type Present } from "./presence.js";
export { renewal } from "./net/renewal.js";
export { createIndexedDbStore, type IndexedDbStoreOptions } from "./store/indexeddb.js";
export type { Store } from "./store/types.js";
export { transactions } from "./transactions.js";
export { eventUndo, treeUndo } from "./undo.js";
export type { FieldError, Json, JsonObject } from "./wire.js";
