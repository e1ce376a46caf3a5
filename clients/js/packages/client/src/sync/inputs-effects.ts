/** The inputs of a client's sync (what happened) and its effects (what to do about it). */

import type { ServerMessage } from "../codec.js";
import type { CommittedEvent, FieldError, Json } from "../wire.js";
import type { UNFIT } from "./drafts.js";

/** Which log, and which past of it (DUR-08). */
export interface LogIdentity {
  readonly logId: string;
  readonly logEpoch: number;
}

/** A checked state to start a partition from. It replaces the partition's events up to `committedId`. */
export interface StartState {
  readonly committedId: number;
  readonly state: Json;
}

/** The server sent a message.
 *
 * Of a page with snapshots: `startStates` are those this client can start from, by partition; `unusable` names the
 * partitions of the others, whose earlier events the page leaves out. `more`: other broadcasts follow this one at
 * once, so the cursors can wait for the last of them.
 */
export interface Received {
  readonly kind: "Received";
  readonly message: ServerMessage;
  readonly startStates?: ReadonlyMap<string, StartState>;
  readonly unusable?: readonly string[];
  readonly more?: boolean;
}

/** Follow a partition from the cursor the store has for it.
 *
 * `highestCursor`: the highest it ever was with this server. `snapshotBased`: its stored history begins with a
 * snapshot.
 */
export interface PartitionAdded {
  readonly kind: "PartitionAdded";
  readonly partition: string;
  readonly cursor: number;
  readonly highestCursor: number;
  readonly snapshotBased: boolean;
}

/** The outcome of SubmitNext: the ids of the drafts that are sent; none when no draft was left.
 *
 * `tooLarge` names a draft that no message to this server can carry, `gone` the requested draft that is no longer
 * pending. `atomic`: they are the drafts of one transaction, sent as one atomic batch. `unfit` are the drafts of a
 * transaction that this server cannot take.
 */
export interface Submitted {
  readonly kind: "Submitted";
  readonly ids: readonly string[];
  readonly tooLarge?: string;
  readonly gone?: string;
  readonly atomic?: boolean;
  readonly unfit?: { readonly ids: readonly string[]; readonly reason: keyof typeof UNFIT };
}

export type Input =
  /** The client is trying to connect. */
  | { readonly kind: "Dialing" }
  /** The socket is open; no message has been sent yet. */
  | { readonly kind: "Opened" }
  | Received
  /** The socket is closed, or could not be opened; `code` is the WebSocket close code where there was one. */
  | { readonly kind: "Lost"; readonly code: number | null }
  /** There are pending drafts in the store. */
  | { readonly kind: "DraftsWaiting" }
  | PartitionAdded
  /** Stop following a partition. */
  | { readonly kind: "PartitionRemoved"; readonly partition: string }
  /** Everything applied so far is in the store. */
  | { readonly kind: "Stored" }
  /** What was applied contradicts the store, which is unchanged; `message` says how. */
  | { readonly kind: "Contradicted"; readonly message: string }
  | Submitted
  /** The program wants a set-aside draft sent now. */
  | { readonly kind: "DraftRetried"; readonly id: string }
  /** A time set by WakeAt may have come. */
  | { readonly kind: "TimerFired" };

/** A draft is committed under this id. */
export interface Accepted {
  readonly id: string;
  readonly committedId: number;
  readonly statusUpdatedAt: number;
}

/** A draft is rejected. It stays in the store with its reason and leaves the view (CLIENT-03). */
export interface DraftRejected {
  readonly id: string;
  readonly reason: string;
  readonly errors: readonly FieldError[];
  /** The server's time of the rejection, where the server gives one. */
  readonly statusUpdatedAt: number | null;
}

/** Request a page. `subscription` is the whole set to subscribe to from now on, null to leave it as it is.
 *
 * `snapshots`: a first page that may contain snapshots, if the client's model can continue from them.
 */
export interface SendSync {
  readonly kind: "SendSync";
  readonly partitions: readonly string[];
  readonly since: number;
  readonly limit: number;
  readonly subscription: readonly string[] | null;
  readonly snapshots: boolean;
}

/** Send the oldest pending drafts, at most `itemsMax` in at most `bytesMax` bytes; answer `Submitted`.
 *
 * `only` is one draft to send alone; drafts in `without` are left out. A transaction is sent alone and whole,
 * whatever `itemsMax`, as one atomic batch of at most `atomicMax` drafts; 0 where the server takes none.
 */
export interface SubmitNext {
  readonly kind: "SubmitNext";
  readonly itemsMax: number;
  readonly bytesMax: number | null;
  readonly only?: string;
  readonly without: ReadonlySet<string>;
  readonly atomicMax: number;
}

/** Store all of this in one transaction (CLIENT-05); answer `Stored` or `Contradicted`.
 *
 * `starts` are partitions whose history begins with this page: from a start state, or from nothing.
 */
export interface Apply {
  readonly kind: "Apply";
  readonly events: readonly CommittedEvent[];
  readonly accepted: readonly Accepted[];
  readonly refused: readonly DraftRejected[];
  readonly cursors: ReadonlyMap<string, number>;
  readonly starts: ReadonlyMap<string, StartState | null>;
}

/** The server's model, known for the first time or unchanged; `digest` is null where the server gives none. */
export interface NoteModel {
  readonly kind: "NoteModel";
  readonly version: number | null;
  readonly digest: string | null;
}

/** Another model: drop snapshots, set all cursors to 0, keep drafts and events (CLIENT-10). */
export interface Rewind {
  readonly kind: "Rewind";
  readonly version: number | null;
  readonly digest: string | null;
}

/** The server's log, known for the first time. */
export interface NoteLog {
  readonly kind: "NoteLog";
  readonly log: LogIdentity;
}

/** The committed data is not this server's: drop it with all cursors and snapshots, keep drafts.
 *
 * `log`: the log the server has now, if it is another.
 */
export interface Reset {
  readonly kind: "Reset";
  readonly log: LogIdentity | null;
}

/** The effects that change the store, in the order they are to be stored. */
export type StoreEffect = Apply | NoteModel | Rewind | NoteLog | Reset;

export type Effect =
  | { readonly kind: "SendConnect"; readonly lastCommittedId: number; readonly snapshots: boolean }
  | SendSync
  | SubmitNext
  | StoreEffect
  /** Show a problem to the program, in the client's status. */
  | { readonly kind: "ReportProblem"; readonly code: string; readonly message: string }
  /** Feed a TimerFired at this time. */
  | { readonly kind: "WakeAt"; readonly at: number }
  /** Close this connection; `Lost` follows. */
  | { readonly kind: "DropConnection" }
  /** Connect again after the backoff; with a new token where the server refused the old one. */
  | { readonly kind: "Retry"; readonly newToken: boolean }
  /** Do not connect again until the program asks for it. */
  | { readonly kind: "Stop"; readonly reason: string };

const NOTHING: Omit<Apply, "kind"> = {
  events: [],
  accepted: [],
  refused: [],
  cursors: new Map(),
  starts: new Map(),
};

export const applying = (parts: Partial<Apply> = {}): Apply => ({ ...NOTHING, ...parts, kind: "Apply" });
