/** Every bound and interval of a client, with the reason for its number. */

export interface Options {
  /** A third of the window that servers commonly keep. */
  readonly heartbeatIntervalMs: number;
  /** A server that answers no heartbeat for this long is taken for dead. */
  readonly deadAfterMs: number;
  /** From the first packet to the end of the WebSocket handshake. */
  readonly connectTimeoutMs: number;
  /** A request unanswered for so long ends the connection: a server may fold a long history before it answers. */
  readonly answerTimeoutMs: number;
  /** So long before a token ends a new one is asked for, and a connection made with it takes over. A token that lives less
   * than three times as long serves for two thirds of its life. 0: when the old one has ended. */
  readonly renewBeforeMs: number;
  /** The first wait is chosen below this, each further one below twice the one before. */
  readonly backoffBaseMs: number;
  /** No wait is longer: a server that is back is found within half a minute. */
  readonly backoffCapMs: number;
  /** A connection that lasted so long starts the waits from the beginning. */
  readonly stableAfterMs: number;
  /** The wait after rate_limited when the server names none. */
  readonly retryAfterMs: number;
  /** When a draft that the server fails on is tried again: each try costs the connection, so ever more rarely. */
  readonly draftRetryBaseMs: number;
  readonly draftRetryCapMs: number;
  /** Events per page; the server reduces it to its own bounds. */
  readonly pageLimit: number;
  /** Broadcasts buffered while a cycle runs; past either, they are dropped and another cycle fetches them. */
  readonly bufferEventsMax: number;
  readonly bufferBytesMax: number;
  /** Without ordered_delivery, live events above the cursor; so many are re-applied when one comes late. */
  readonly tailEventsMax: number;
  /** Events folded before a partition's state is stored again. */
  readonly snapshotEvery: number;
  /** Start a partition from the server's snapshot where the model can go on from it. */
  readonly snapshots: boolean;
}

export const DEFAULTS: Options = {
  heartbeatIntervalMs: 10_000,
  deadAfterMs: 25_000,
  connectTimeoutMs: 10_000,
  answerTimeoutMs: 60_000,
  renewBeforeMs: 30_000,
  backoffBaseMs: 500,
  backoffCapMs: 30_000,
  stableAfterMs: 10_000,
  retryAfterMs: 1_000,
  draftRetryBaseMs: 60_000,
  draftRetryCapMs: 3_600_000,
  pageLimit: 1000,
  bufferEventsMax: 1000,
  bufferBytesMax: 16 * 1024 * 1024,
  tailEventsMax: 100,
  snapshotEvery: 1000,
  snapshots: true,
};
