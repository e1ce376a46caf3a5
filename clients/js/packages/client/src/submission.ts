/** From a submitted event to a stored draft, and from there to its outcome. */

import { canonical, NotCanonical } from "./canonical.js";
import { byteLength, ENVELOPE_BYTES, isObject, itemPayload } from "./codec.js";
import type { Committed, Rejected } from "./config.js";
import { ClientClosed, InvalidEvent, UnknownDraft, type ClientError } from "./errors.js";
import { newId } from "./ids.js";
import { DEPTH_MAX, ENVELOPE_DEPTH, EVENT_ID_BYTES_MAX } from "./limits.js";
import type { Model } from "./model/model.js";
import { normalise, PartitionError } from "./partitions.js";
import { parseEvent } from "./store/apply.js";
import type { EventLog, NewDraft } from "./store/log.js";
import type { Change, DraftRecord } from "./store/types.js";
import type { Replica } from "./view/replica.js";
import type { JsonObject } from "./wire.js";

/** An event to submit. `partition` is short for one name. */
export interface EventInput {
  readonly event: JsonObject;
  readonly partitions?: readonly string[];
  readonly partition?: string;
  /** A new id unless it is given. */
  readonly id?: string;
}

/** An event on its way to the server: stored, and part of the views, from the moment it exists. */
export interface Draft {
  readonly id: string;
  readonly partitions: readonly string[];
  readonly draftClock: number;
  readonly event: JsonObject;
  readonly createdAt: number;
  /** What the server made of it, however long that takes; ClientClosed when the client is stopped first. */
  settled(options?: { timeoutMs?: number }): Promise<Committed | Rejected>;
}

interface Request {
  readonly drafts: readonly NewDraft[];
  readonly again: readonly string[];
  resolve(drafts: DraftRecord[]): void;
  reject(error: unknown): void;
}

interface Waiter {
  outcome?: Promise<Committed | Rejected>;
  resolve(outcome: Committed | Rejected): void;
  reject(error: ClientError): void;
}

/** Everything about an event that needs no state; throws InvalidEvent (CLIENT-02). */
export function checkForm(input: EventInput, model: Model, bytesMax: number | null): NewDraft {
  const id = input.id ?? newId();
  const wrong = (field: string, message: string) => new InvalidEvent([{ field, message }]);
  if (typeof id !== "string" || !id || byteLength(id) > EVENT_ID_BYTES_MAX) {
    throw wrong("id", `must have 1 to ${EVENT_ID_BYTES_MAX} bytes`);
  }
  let partitions: string[];
  try {
    partitions = normalise(input.partitions ?? []);
  } catch (error) {
    if (!(error instanceof PartitionError)) throw error;
    throw wrong(error.index === null ? "partitions" : `partitions.${error.index}`, error.message);
  }
  if (!isObject(input.event)) throw wrong("event", "must be an object");
  let event: string;
  try {
    event = canonical(input.event, DEPTH_MAX - ENVELOPE_DEPTH);
    canonical(id);
  } catch (error) {
    if (!(error instanceof NotCanonical)) throw error;
    throw wrong(error.field ? `event.${error.field}` : "event", error.message);
  }
  if (bytesMax !== null && byteLength(itemPayload(id, partitions, event)) + ENVELOPE_BYTES > bytesMax) {
    throw wrong("event", `is larger than a message to this server may be (${bytesMax} bytes)`);
  }
  const errors = model.shape(parseEvent(event));
  if (errors.length) throw new InvalidEvent(errors);
  return { id, partitions, event, createdAt: Date.now() };
}

/** Stores drafts and answers for them. Every open outcome belongs to a pending draft. */
export class Submission {
  readonly #requests: Request[] = [];
  readonly #outcomes = new Map<string, Waiter>();
  #closed: ClientError | null = null;

  constructor(
    readonly log: EventLog,
    readonly replica: Replica,
    readonly changed: (change: Change) => Promise<void>,
    /** Hears of drafts of the program before they are shown. */
    readonly drafting: ((drafts: readonly DraftRecord[]) => void) | undefined,
  ) {}

  /** Store drafts that belong together; `again` names rejected ones that are submitted again. */
  submit(drafts: readonly NewDraft[], again: readonly string[] = []): Promise<DraftRecord[]> {
    return new Promise((resolve, reject) => {
      if (this.#requests.push({ drafts, again, resolve, reject }) === 1) void this.#takeRequests();
    });
  }

  /** Store what programs submit, in order; what comes while a write is under way goes into the next one together. */
  async #takeRequests(): Promise<void> {
    while (this.#requests.length) {
      const requests = this.#requests.slice();
      const verdicts = this.replica.judge(
        requests.map(({ drafts }) =>
          drafts.map(({ partitions, event }) => ({ partitions, event: parseEvent(event) })),
        ),
      );
      const good = requests.filter((request, index) => {
        const errors = verdicts[index] ?? [];
        if (errors.length) request.reject(new InvalidEvent(errors));
        return !errors.length;
      });
      try {
        await this.#store(good);
      } catch (error) {
        // One of them has an id that is taken, or is no rejected draft: each gets an answer of its own.
        if (good.length === 1) good[0]?.reject(error);
        else for (const request of good) await this.#store([request]).catch((own) => request.reject(own));
      }
      this.#requests.splice(0, requests.length);
    }
  }

  async #store(requests: readonly Request[]): Promise<void> {
    if (!requests.length) return;
    if (this.#closed !== null) throw this.#closed;
    const change = await this.log.addDrafts(
      requests.flatMap((request) => request.drafts),
      requests.flatMap((request) => request.again),
    );
    this.drafting?.(change.drafts);
    await this.changed(change);
    let at = 0;
    for (const { drafts, resolve } of requests) resolve(change.drafts.slice(at, (at += drafts.length)));
  }

  /** What became of a draft. */
  outcome(id: string): Promise<Committed | Rejected> {
    if (this.#closed !== null) return Promise.reject(this.#closed);
    const rejected = this.replica.rejected.get(id);
    if (rejected) return Promise.resolve(rejection(rejected));
    if (!this.replica.pending.has(id)) {
      return this.log.settled([id]).then(([event]) => {
        if (event) return committed(event);
        throw new UnknownDraft(id);
      });
    }
    const waited = this.#outcomes.get(id)?.outcome;
    if (waited) return waited;
    const outcome = new Promise<Committed | Rejected>((resolve, reject) => this.#outcomes.set(id, { resolve, reject }));
    (this.#outcomes.get(id) as Waiter).outcome = outcome;
    return outcome;
  }

  settle(id: string, outcome: Committed | Rejected): void {
    this.#outcomes.get(id)?.resolve(outcome);
    this.#outcomes.delete(id);
  }

  close(error: ClientError = new ClientClosed("the client was stopped")): void {
    this.#closed = error;
    for (const waiter of this.#outcomes.values()) waiter.reject(error);
    this.#outcomes.clear();
  }
}

export const committed = (event: Omit<Committed, "status">): Committed => ({
  status: "committed",
  id: event.id,
  committedId: event.committedId,
  statusUpdatedAt: event.statusUpdatedAt,
});

export const rejection = (record: DraftRecord): Rejected => ({
  status: "rejected",
  id: record.id,
  partitions: record.partitions,
  event: parseEvent(record.event),
  reason: record.reason ?? "",
  errors: record.errors,
  createdAt: record.createdAt,
  statusUpdatedAt: record.statusUpdatedAt,
  transaction: record.batch ?? null,
});
