/** The state of a client's sync: plain data, replaced by each transition. */

import { LIMITS } from "../codec.js";
import { ENTRIES_MAX } from "../limits.js";
import { DEFAULTS, type Options } from "../options.js";
import { byCodePoints } from "../partitions.js";
import type { CommittedEvent, Limits } from "../wire.js";
import type { LogIdentity } from "./inputs-effects.js";

/** Why a partition is left out: the server takes no more names on one connection. */
export const TOO_MANY = "too_many_partitions";

export const COMPATIBILITY = "compatibility";

/** The connection's phase, in the words of the client's status. */
export type Phase = "offline" | "connecting" | "syncing" | "live";

/** One run of pages up to a watermark.
 *
 * - `subscription` is sent with the first request.
 * - `syncTo`, the watermark, is known after the first page.
 * - `discardAnswer`: the unanswered request belongs to committed data that has been dropped since.
 * - `endAfterPage`: the partitions have changed, so the cycle ends with the page under way.
 * - `overflow`: the buffer was full and broadcasts were dropped, so another cycle must follow.
 * - `snapshots`: the first page may contain snapshots.
 */
export interface SyncCycle {
  readonly partitions: readonly string[];
  readonly since: number;
  readonly subscription: readonly string[] | null;
  readonly syncTo: number | null;
  readonly discardAnswer: boolean;
  readonly endAfterPage: boolean;
  readonly overflow: boolean;
  readonly snapshots: boolean;
}

/** A pending draft that is left out of submits because the server fails on it.
 *
 * It is sent again at `retryAt`. `proven`: the server failed on it again after it had answered for another draft.
 */
export interface SetAsideDraft {
  readonly reason: string;
  readonly retryAt: number;
  readonly waitMs: number;
  readonly proven: boolean;
}

/** Everything the sync of one client depends on. The fields from `phase` on belong to one connection.
 *
 * - `cursors`: every followed partition, with the committed_id up to which the store has all of its events.
 * - `highestCursors`: the highest cursor each partition ever had with this server. It stays when the cursor goes
 *   back to 0 for another model.
 * - `modelVersion` is undefined before a server was met; `modelDigest`, `log` are null where the server names none.
 * - `singleSubmits`: how many of the next submits carry one draft each, to find the draft a batch is refused for.
 * - `batchFailures`: how often in a row the server failed on a submit of several drafts; `draftFailures`: how often
 *   on a draft that was sent alone; `setAsideDrafts`: the drafts left out of submits for it.
 * - `atomicGranted`: whether the server takes atomic batches (EXT-10); null before it has said so.
 * - `submittedBatch`: whether `submitted` is one atomic batch.
 * - `connectLostAt`: when a connection last ended between `connect` and its answer; null if none has.
 * - `storing`: an Apply is not yet in the store.
 * - `wantsSnapshots`: whether this client asks for them; `serverSendsSnapshots`: whether the server has agreed.
 * - `snapshotBased`: partitions whose stored history begins with a snapshot, which a new start must drop.
 * - `fullHistoryOnly`: partitions whose snapshot could not be used, so that all of their events are requested.
 * - `pendingRequest`: the one request that is unanswered, sent at `requestedAt`.
 * - `refusedPartitions`: partitions the server refuses to sync, with its reason; requested again on the next
 *   connection.
 * - `leftOut`: partitions beyond what the server lets one connection subscribe to: those added last.
 * - `namesMax`: how many partitions one sync names.
 * - `oneByOne`: the server does not say which partition it refuses, so each is requested alone.
 * - `live`: partitions that are subscribed and whose pages have reached the watermark.
 * - `tailFetchDue`: live partitions whose events above the cursor are to be fetched by pages, because `tailEvents`
 *   of them have come without ordered delivery.
 * - `buffer`: broadcasts that wait for the end of the cycle.
 * - `highestSeenId`: the highest committed_id of any broadcast or result.
 */
export interface SyncState {
  readonly profile: string;
  readonly options: Options;
  readonly cursors: ReadonlyMap<string, number>;
  readonly highestCursors: ReadonlyMap<string, number>;
  readonly modelVersion: number | null | undefined;
  readonly modelDigest: string | null;
  readonly log: LogIdentity | null;
  readonly draftsWaiting: boolean;
  readonly batchMax: number;
  readonly singleSubmits: number;
  readonly batchFailures: number;
  readonly draftFailures: ReadonlyMap<string, number>;
  readonly setAsideDrafts: ReadonlyMap<string, SetAsideDraft>;
  readonly atomicGranted: boolean | null;
  readonly connectLostAt: number | null;
  readonly storing: boolean;
  readonly wantsSnapshots: boolean;
  readonly snapshotBased: ReadonlySet<string>;
  readonly fullHistoryOnly: ReadonlySet<string>;

  readonly phase: Phase;
  readonly pendingRequest: "connect" | "sync" | "submit" | null;
  readonly requestedAt: number;
  readonly retryAt: number | null;
  readonly submitted: readonly string[];
  readonly submittedBatch: boolean;
  readonly failure: string | null;
  readonly limits: Limits;
  readonly orderedDelivery: boolean;
  readonly serverSendsSnapshots: boolean;
  readonly refusedPartitions: ReadonlyMap<string, string>;
  readonly leftOut: ReadonlyMap<string, string>;
  readonly namesMax: number;
  readonly oneByOne: boolean;
  readonly live: ReadonlySet<string>;
  readonly tailFetchDue: ReadonlySet<string>;
  readonly subscribed: readonly string[];
  readonly cycle: SyncCycle | null;
  readonly buffer: readonly CommittedEvent[];
  readonly bufferedBytes: number;
  readonly highestSeenId: number;
  readonly tailEvents: number;
}

/** What one connection leaves behind when it ends. */
export const DISCONNECTED = {
  phase: "offline",
  pendingRequest: null,
  retryAt: null,
  submitted: [],
  failure: null,
  refusedPartitions: new Map(),
  leftOut: new Map(),
  oneByOne: false,
  live: new Set(),
  tailFetchDue: new Set(),
  subscribed: [],
  cycle: null,
  buffer: [],
  bufferedBytes: 0,
  highestSeenId: 0,
  tailEvents: 0,
} satisfies Partial<SyncState>;

export function initialState(profile: string, given: Partial<SyncState> = {}): SyncState {
  return {
    profile,
    options: DEFAULTS,
    cursors: new Map(),
    highestCursors: new Map(),
    modelVersion: undefined,
    modelDigest: null,
    log: null,
    draftsWaiting: false,
    batchMax: 100,
    singleSubmits: 0,
    batchFailures: 0,
    draftFailures: new Map(),
    setAsideDrafts: new Map(),
    atomicGranted: null,
    connectLostAt: null,
    submittedBatch: false,
    storing: false,
    wantsSnapshots: false,
    snapshotBased: new Set(),
    fullHistoryOnly: new Set(),
    requestedAt: 0,
    limits: LIMITS,
    orderedDelivery: false,
    serverSendsSnapshots: false,
    namesMax: ENTRIES_MAX,
    ...DISCONNECTED,
    ...given,
  };
}

/** The partitions that are followed, neither refused nor left out, sorted. */
export function active(state: SyncState): string[] {
  return [...state.cursors.keys()]
    .filter((name) => !state.refusedPartitions.has(name) && !state.leftOut.has(name))
    .sort(byCodePoints);
}

/** How many drafts an atomic batch may have; 0 where the server takes none. */
export function atomicMax(state: SyncState): number {
  if (!state.atomicGranted) return 0;
  const { max_batch_size: most, max_in_flight_drafts: inFlight } = state.limits;
  return inFlight === null ? most : Math.min(most, inFlight);
}
