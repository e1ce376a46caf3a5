/** What keeps one store in step with its server: the sync state, performed on the store and the connection.
 *
 * `feed` is the only way to change the sync state. Inputs are processed one after the other: what they change is stored
 * first, then messages are sent, then the program hears of it.
 */

import { extensionOf, type ClientEvent, type Config, type Problem } from "./config.js";
import { StoreContradiction } from "./errors.js";
import { ServerConnection, type ConnectionOwner } from "./net/connection.js";
import type { Renewal } from "./net/renewal.js";
import { nextSubmit } from "./outgoing.js";
import type { EventLog } from "./store/log.js";
import type { Change, DraftRecord, NotesRow, PartitionRow } from "./store/types.js";
import { advance } from "./sync/advance.js";
import { canContinueFrom, checkSnapshots, mayUseSnapshots } from "./sync/bootstrap.js";
import type { Effect, Input, SendSync, StoreEffect, SubmitNext, Submitted } from "./sync/inputs-effects.js";
import { initialState, type SyncState } from "./sync/state.js";
import type { JsonObject, Sync } from "./wire.js";

export interface CoreHooks {
  /** Show a change, here and in other tabs; resolves when it is shown here. */
  changed(change: Change): Promise<void>;
  /** The drafts to send, oldest first. */
  readonly replica: { readonly pending: ReadonlyMap<string, DraftRecord> };
  /** The state, the last problem, or the reason for a stop is another. */
  publish(): void;
  readonly emit: (event: ClientEvent) => void;
  /** The store failed: nothing can go on. */
  fail(error: unknown): void;
}

export class Core implements ConnectionOwner {
  state: SyncState;
  lastError: Problem | null = null;
  stopReason: string | null = null;
  readonly connection: ServerConnection;
  readonly #rows: Map<string, PartitionRow>;
  readonly #queue: { inputs: Input[]; done: () => void }[] = [];
  #working = false;
  #ended = false;
  #storing: StoreEffect[] = [];
  #messages: [string, string][] = [];

  constructor(
    readonly config: Config,
    readonly log: EventLog,
    readonly label: string,
    notes: NotesRow,
    rows: readonly PartitionRow[],
    readonly hooks: CoreHooks,
    readonly now: () => number = () => performance.now(),
  ) {
    this.#rows = new Map(rows.map((row) => [row.name, row]));
    const Connection = extensionOf<Renewal>(config, "renewal")?.Connection ?? ServerConnection;
    this.connection = new Connection(config, this, now);
    const { model, options } = config;
    this.state = initialState(model.profile, {
      options,
      cursors: new Map(rows.map((row) => [row.name, row.cursor])),
      highestCursors: new Map(rows.map((row) => [row.name, row.known])),
      modelVersion: notes.model === null ? undefined : notes.model.version,
      modelDigest: notes.model?.digest ?? null,
      log: notes.log,
      draftsWaiting: hooks.replica.pending.size > 0,
      wantsSnapshots: options.snapshots && mayUseSnapshots(model),
      snapshotBased: new Set(rows.filter((row) => row.floor > 0).map((row) => row.name)),
    });
  }

  /** Process inputs with all their effects; resolves when they are stored and shown. */
  feed(...inputs: Input[]): Promise<void> {
    if (this.#ended) return Promise.resolve();
    return new Promise((done) => {
      this.#queue.push({ inputs, done });
      if (!this.#working) {
        this.#working = true;
        void this.#work();
      }
    });
  }

  /** End: what was fed is finished, nothing more is taken. */
  async close(): Promise<void> {
    await this.connection.close();
    await this.feed();
    this.#ended = true;
  }

  async #work(): Promise<void> {
    for (let next = this.#queue.shift(); next; next = this.#queue.shift()) {
      try {
        if (!this.#ended) await this.#process(next.inputs);
      } catch (error) {
        this.#ended = true;
        this.hooks.fail(error);
      }
      next.done();
    }
    this.#working = false;
  }

  async #process(inputs: readonly Input[]): Promise<void> {
    for (const [index, input] of inputs.entries()) {
      const following = inputs[index + 1];
      const more = isBroadcast(input) && following !== undefined && isBroadcast(following);
      this.#step(more ? { ...(input as Extract<Input, { kind: "Received" }>), more } : input);
      // Where one connection takes over from another, nobody sees the client between the two.
      if (!more && (input.kind === "Received" || following === undefined)) await this.#flush();
    }
    this.hooks.publish();
  }

  /** One transition, and the effects that need not wait for the store. */
  #step(input: Input): void {
    const checked = checkSnapshots(input, this.state, this.config.model);
    const [state, effects] = advance(this.state, checked, this.now());
    this.state = state;
    for (const effect of effects) this.#perform(effect);
    if (input.kind === "Received" && input.message.type === "connected" && this.state.phase === "syncing") {
      const { payload } = input.message;
      this.log.userId = payload.user_id;
      const send = (type: string, body: unknown) => this.connection.send(type, JSON.stringify(body));
      this.config.extensions.forEach((each) => each.connected?.(payload, send));
    }
  }

  /** Store what waits, go on from there until nothing waits, then send. */
  async #flush(): Promise<void> {
    while (this.#storing.length) {
      const effects = this.#storing;
      this.#storing = [];
      try {
        const change = await this.log.apply(effects, this.#rows, this.label);
        for (const row of change.rows) this.#rows.set(row.name, row);
        await this.hooks.changed(change);
        if (this.state.storing) this.#step({ kind: "Stored" });
      } catch (error) {
        if (!(error instanceof StoreContradiction)) throw error;
        this.#step({ kind: "Contradicted", message: error.message });
        this.#step({ kind: "DraftsWaiting" });
      }
    }
    for (const [type, payload] of this.#messages.splice(0)) this.connection.send(type, payload);
  }

  #perform(effect: Effect): void {
    switch (effect.kind) {
      case "Apply":
      case "NoteModel":
      case "NoteLog":
      case "Rewind":
      case "Reset":
        this.#storing.push(effect);
        if (effect.kind === "NoteModel" || effect.kind === "Rewind") this.#matchModel(effect.version, effect.digest);
        break;
      case "SendSync":
        this.#messages.push(["sync", this.#syncPayload(effect)]);
        break;
      case "SubmitNext":
        this.#step(this.#submitNext(effect));
        break;
      case "SendConnect":
        this.connection.connect(effect.lastCommittedId, effect.snapshots);
        break;
      case "ReportProblem":
        this.report(effect.code, effect.message);
        break;
      case "WakeAt":
        this.connection.wakeAt(effect.at);
        break;
      case "DropConnection":
        this.connection.dropConnection();
        break;
      case "Retry":
        this.connection.retry(effect.newToken);
        break;
      case "Stop":
        this.report("stopped", effect.reason);
        this.connection.stop(effect.reason);
        break;
      default:
        effect satisfies never;
    }
  }

  #syncPayload(effect: SendSync): string {
    const { state, config } = this;
    const fit = effect.snapshots && canContinueFrom(config.model, state.modelVersion, state.modelDigest);
    const body: Sync = {
      partitions: [...effect.partitions],
      since_committed_id: effect.since,
      limit: effect.limit,
      ...(effect.subscription !== null && { subscription_partitions: [...effect.subscription] }),
      ...(state.serverSendsSnapshots && !effect.since && !fit && { snapshots: false }),
    };
    return JSON.stringify(body);
  }

  #submitNext(effect: SubmitNext): Submitted {
    const [submitted, payload] = nextSubmit(this.hooks.replica.pending, effect, extensionOf(this.config, "atomic"));
    if (payload) this.#messages.push(["submit_events", payload]);
    return submitted;
  }

  /** Keep a problem as the last one and show it. */
  report(code: string, message: string): void {
    this.lastError = { code, message, atMs: Date.now() };
    this.hooks.emit({ type: "problem", ...this.lastError });
  }

  #matchModel(version: number | null, digest: string | null): void {
    const { model } = this.config;
    if (version === null || model.version === null) return;
    const same = model.version === version && (digest === null || model.digest === null || digest === model.digest);
    if (same) return;
    const other = model.version === version ? "another content" : model.version;
    this.report("model_mismatch", `the server has model version ${version}, this client ${other}`);
  }

  /** No further connection is tried, for this reason; null: one is. */
  stopped(reason: string | null): void {
    this.stopReason = reason;
    this.hooks.publish();
  }

  lost(): void {
    for (const each of this.config.extensions) each.lost?.();
  }

  extension(type: string, payload: JsonObject): void {
    for (const each of this.config.extensions) if (each.types?.includes(type)) each.message?.(type, payload);
  }

  // -- partitions ---------------------------------------------------------------------------------------------

  async addPartition(name: string): Promise<void> {
    if (this.#rows.has(name) && !this.state.refusedPartitions.has(name)) return;
    const row = this.#rows.get(name) ?? (await this.log.follow(name, this.label));
    this.#rows.set(name, row);
    const { cursor, known: highestCursor, floor } = row;
    await this.feed({ kind: "PartitionAdded", partition: name, cursor, highestCursor, snapshotBased: floor > 0 });
  }

  /** Leave a partition and forget its events; drafts in it are still sent. */
  async removePartition(name: string): Promise<void> {
    if (!this.#rows.delete(name)) return;
    await this.feed({ kind: "PartitionRemoved", partition: name });
    await this.hooks.changed(await this.log.leave(name));
  }
}

const isBroadcast = (input: Input): boolean => input.kind === "Received" && input.message.type === "event_broadcast";

export { advance } from "./sync/advance.js";
export { initialState } from "./sync/state.js";
