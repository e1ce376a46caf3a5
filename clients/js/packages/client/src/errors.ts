/** Everything a client throws; the names are those of the Python client. */

import type { FieldError } from "./wire.js";

export class ClientError extends Error {
  override get name(): string {
    return this.constructor.name;
  }
}

/** The event was refused locally: nothing was stored and nothing will be sent (CLIENT-02). */
export class InvalidEvent extends ClientError {
  constructor(readonly errors: readonly FieldError[]) {
    super(errors.map((error) => `${error.field}: ${error.message}`).join("; "));
  }
}

/** The server cannot take this transaction as a whole; nothing was stored, and it is never sent in parts. */
export class TransactionRefused extends ClientError {}

/** The event cannot be taken back, or done again; nothing was stored (CLIENT-22).
 *
 * `reason`: "nothing", "changed" (by others since), "rejected", "no_inverse", "refused" (`errors` say why), or "gone".
 */
export class UndoRefused extends ClientError {
  constructor(
    readonly reason: "nothing" | "changed" | "rejected" | "no_inverse" | "refused" | "gone",
    message: string,
    readonly errors: readonly FieldError[] = [],
  ) {
    super(message);
  }
}

/** The server's history cannot be read now; `code` is the server's reason, where it gave one. */
export class HistoryUnavailable extends ClientError {
  constructor(
    message: string,
    readonly code: string | null = null,
  ) {
    super(message);
  }
}

/** The client does not follow this partition. */
export class UnknownPartition extends ClientError {
  constructor(readonly partition: string) {
    super(`${JSON.stringify(partition)} is not a partition of this client; call addPartition first`);
  }
}

/** There is no rejected draft of this id: pending drafts are on their way and cannot be taken back. */
export class UnknownDraft extends ClientError {
  constructor(readonly id: string) {
    super(`no rejected draft has the id ${JSON.stringify(id)}`);
  }
}

/** The client is stopped or was not started; what was pending stays in its store. */
export class ClientClosed extends ClientError {}

/** No further connection is tried; `resume` tries again. */
export class ClientStopped extends ClientError {}

/** The client is live and will not get further by waiting, without some of its partitions or drafts. */
export class NotCaughtUp extends ClientError {
  constructor(
    readonly partitions: Readonly<Record<string, string>>,
    readonly drafts: Readonly<Record<string, string>>,
  ) {
    const names = Object.entries({ ...partitions, ...drafts }).map(([name, why]) => `${name} (${why})`);
    super(`set aside: ${names.join(", ")}`);
  }
}

/** Something did not happen in time; the text says what the client is waiting for. */
export class TimedOut extends ClientError {}

/** The local store cannot be used. */
export class StoreError extends ClientError {}

/** Another client has the store open. */
export class StoreInUse extends StoreError {}

/** The store belongs to another client_id, or is no store of this library. */
export class StoreForeign extends StoreError {}

/** A committed event contradicts a stored one (CLIENT-12); nothing was changed. */
export class StoreContradiction extends StoreError {}
