/** The client a program uses. */

import { Actions } from "./actions.js";
import { configure } from "./config.js";
import type { ClientEvent, Config, History, Rejected, Status, SyncClientOptions } from "./config.js";
import { Core } from "./core.js";
import { ClientClosed, ClientError, ClientStopped, UnknownDraft } from "./errors.js";
import { checkTransaction, transactionOf } from "./outgoing.js";
import { partitionName } from "./partitions.js";
import type { PartitionPresence, Presence } from "./presence.js";
import { isOver } from "./problems.js";
import { alike, leaderStatus, OFFLINE, OTHER_MODEL, untilCaughtUp, within, type LeaderStatus } from "./status.js";
import { parseEvent } from "./store/apply.js";
import { openLog, type EventLog, type NewDraft } from "./store/log.js";
import type { Change, DraftRecord } from "./store/types.js";
import { checkForm, committed, rejection, Submission, type Draft, type EventInput } from "./submission.js";
import { modelLabel } from "./sync/bootstrap.js";
import { joinTabs, type TabMessage, type Tabs } from "./tabs.js";
import { Replica, type Applied } from "./view/replica.js";
import type { Json, JsonObject } from "./wire.js";

export class SyncClient extends Actions<Promise<Draft>> {
  readonly #config: Config;
  #log: EventLog | null = null;
  #replica: Replica | null = null;
  #submission: Submission | null = null;
  #tabs: Tabs | null = null;
  #core: Core | null = null;
  #leading: Promise<void> = Promise.resolve();
  #leader: LeaderStatus = OFFLINE;
  #status: Status;
  #pendingList: readonly Draft[] | null = null;
  #rejectedList: readonly Rejected[] | null = null;
  #published: Status | null = null;
  #paused = false;
  #failure: unknown = null;

  constructor(given: SyncClientOptions) {
    super();
    this.#config = configure(given);
    this.#status = this.#makeStatus();
    if (given.onEvent) this.subscribe(given.onEvent);
  }

  /** Open the store, show what it has, and connect; resolves when the views can be read, online or not. */
  async start(): Promise<void> {
    if (this.#log !== null) throw new ClientError("the client is started already");
    const { clientId, extensions, model, options, partitions } = this.#config;
    const label = modelLabel(model);
    const log = await openLog(this.#config.store, clientId, (error) => {
      const message = `the browser stores nothing (${String(error)}): drafts live as long as this page`;
      this.emit({ type: "problem", code: "storage_refused", message, atMs: Date.now() });
    });
    this.#log = log;
    this.#failure = null;
    const replica = new Replica(
      log,
      model,
      label,
      options.snapshotEvery,
      (applied) => this.#onApplied(applied),
      (error) => this.#onFailed(error),
    );
    this.#replica = replica;
    this.#submission = new Submission(log, replica, (change) => this.#changed(change));
    for (const name of partitions ?? (await log.partitions())) {
      await log.follow(name, label);
      await replica.open(name);
    }
    const shared = this.#config.tabs === false ? null : log.backend.shared;
    const tabs = await joinTabs(shared, (message) => this.#onMessage(message));
    this.#tabs = tabs;
    await replica.reload();
    const host = { clientId, tabs, emit: (event: ClientEvent) => this.emit(event) };
    for (const each of extensions ?? []) each.open?.(host);
    tabs.send({ type: "hello", leader: false });
    tabs.send({ type: "follow", partitions: replica.partitions });
    this.#publish();
    this.#leading = this.#lead(log, replica, label, tabs).catch((error: unknown) => this.#onFailed(error));
    // Without other tabs nobody else leads: be ready when this resolves.
    if (shared === null) await this.#leading;
  }

  /** Wait for the lead, then keep the store in step with the server. */
  async #lead(log: EventLog, replica: Replica, label: string, tabs: Tabs): Promise<void> {
    await tabs.lead();
    if (this.#log !== log) return;
    await replica.reload();
    const { notes } = await log.load();
    const rows = await Promise.all(replica.partitions.map((name) => log.follow(name, label)));
    const core = new Core(this.#config, log, label, notes, rows, {
      changed: (change) => this.#changed(change),
      pending: () => replica.pending,
      published: () => this.#publish(),
      problem: (problem) => this.emit({ type: "problem", ...problem }),
      failed: (error) => this.#onFailed(error),
    });
    if (this.#log !== log) return;
    this.#core = core;
    core.connection.start();
    if (this.#paused) core.connection.pause();
    tabs.send({ type: "hello", leader: true });
    this.#publish();
  }

  /** Disconnect, store the views and close the store. Pending drafts stay in it. */
  async stop(): Promise<void> {
    const [log, replica] = [this.#log, this.#replica];
    if (log === null || replica === null) return;
    this.#log = null;
    this.#submission?.close();
    for (const each of this.#config.extensions ?? []) each.close?.();
    await this.#core?.close();
    this.#core = null;
    await replica.close();
    this.#tabs?.close();
    await this.#leading;
    this.#replica = null;
    await log.close();
    this.#leader = OFFLINE;
    this.#publish();
  }

  /** The store failed: what was acknowledged is safe, and nothing goes on. */
  #onFailed(error: unknown): void {
    if (this.#failure !== null || this.#log === null) return;
    this.#failure = error;
    const message = `the store failed: ${String(error)}`;
    this.#leader = { ...this.#leader, phase: "offline", stopped: message };
    this.emit({ type: "problem", code: "store_failed", message, atMs: Date.now() });
    void this.#core?.connection.close();
    this.#core = null;
    this.#submission?.close(new ClientStopped(message));
    this.#publish();
  }

  /** Go offline until `resume`, in all tabs. */
  pause(): void {
    this.#paused = true;
    if (this.#core) this.#core.connection.pause();
    else this.#tabs?.send({ type: "pause" });
  }

  /** Go online now; also after the client stopped because another one took its place. */
  resume(): void {
    this.#paused = false;
    if (this.#core) this.#core.connection.resume();
    else this.#tabs?.send({ type: "resume" });
  }

  /** Check an event, store it as a draft and show it in the views; it goes out as soon as it can.
   *
   * InvalidEvent, with nothing stored, when its form is wrong or the current view refuses it.
   */
  async submitEvent(input: EventInput): Promise<Draft> {
    return (await this.submitEvents([input]))[0] as Draft;
  }

  /** Several events in one write: all of them are stored, or none. Each is judged by the views those before leave.
   *
   * `again` names rejected drafts that are submitted again.
   */
  async submitEvents(inputs: readonly EventInput[], again: readonly string[] = []): Promise<Draft[]> {
    return this.#submit(this.#checked(inputs), again);
  }

  /** Several events that the server commits as a whole or not at all, and that are shown together or not at all.
   *
   * TransactionRefused, with nothing stored, when the server is known not to take it; it is never sent in parts.
   */
  async transaction(inputs: readonly EventInput[], again: readonly string[] = []): Promise<Draft[]> {
    const drafts = this.#checked(inputs);
    checkTransaction(drafts, this.#core?.state);
    const together = drafts[0]?.id ?? "";
    return this.#submit(drafts.map((draft) => ({ ...draft, together })), again);
  }

  #checked(inputs: readonly EventInput[]): NewDraft[] {
    this.#open();
    const bytesMax = this.#core?.state.limits.max_message_bytes ?? null;
    return inputs.map((input) => {
      const partitions = input.partitions ?? [this.#meant(input.partition)];
      return checkForm({ ...input, partitions }, this.#config.model, bytesMax);
    });
  }

  async #submit(drafts: readonly NewDraft[], again: readonly string[]): Promise<Draft[]> {
    const records = await (this.#submission as Submission).submit(drafts, again);
    return records.map((record) => this.#draft(record));
  }

  protected act(event: JsonObject, partition: string | undefined): Promise<Draft> {
    return this.submitEvent(partition === undefined ? { event } : { event, partition });
  }

  #draft(record: DraftRecord): Draft {
    const { id, partitions, draftClock, createdAt } = record;
    const settled = (options: { timeoutMs?: number } = {}) => {
      const outcome = this.#submission?.outcome(id) ?? Promise.reject(new ClientClosed("the client is not started"));
      return within(outcome, options.timeoutMs, `the draft ${JSON.stringify(id)} was not answered`, () => this.#status);
    };
    return { id, partitions, draftClock, createdAt, event: parseEvent(record.event), settled };
  }

  /** The drafts the server has not answered yet, oldest first. The same list until it changes. */
  pending(): readonly Draft[] {
    this.#pendingList ??= [...(this.#replica?.pending.values() ?? [])].map((record) => this.#draft(record));
    return this.#pendingList;
  }

  /** The drafts the server refused, with its reasons, oldest first. The same list until it changes. */
  rejected(): readonly Rejected[] {
    this.#rejectedList ??= [...(this.#replica?.rejected.values() ?? [])]
      .sort((a, b) => a.draftClock - b.draftClock)
      .map(rejection);
    return this.#rejectedList;
  }

  /** Try a rejected draft again, behind everything that is pending now, or one that is set aside at once.
   *
   * Those of its transaction go with it.
   */
  async retry(id: string): Promise<Draft> {
    this.#open();
    const replica = this.#replica as Replica;
    const pending = replica.pending.get(id);
    if (pending) {
      if (this.#core) await this.#core.feed({ kind: "DraftRetried", id });
      else this.#tabs?.send({ type: "retry", id });
      return this.#draft(pending);
    }
    const record = replica.rejected.get(id);
    if (!record) throw new UnknownDraft(id);
    const records = transactionOf(record, replica.rejected.values());
    const inputs = records.map(({ id, partitions, event }) => ({ id, partitions, event: parseEvent(event) }));
    const ids = records.map((each) => each.id);
    const drafts = await (record.batch === undefined ? this.submitEvents(inputs, ids) : this.transaction(inputs, ids));
    return drafts.find((draft) => draft.id === id) as Draft;
  }

  /** Forget a rejected draft, with those of its transaction. */
  async discard(id: string): Promise<void> {
    const log = this.#open();
    const rejected = (this.#replica as Replica).rejected;
    const record = rejected.get(id);
    const ids = record ? transactionOf(record, rejected.values()).map((each) => each.id) : [id];
    await this.#changed(await log.discard(ids));
  }

  /** The partition that is meant when none is named. */
  #meant(partition: string | undefined): string {
    if (partition !== undefined) return partition;
    const [only, ...others] = this.#replica?.partitions ?? [];
    if (only === undefined || others.length) throw new TypeError("name the partition: this client follows not just one");
    return only;
  }

  /** Whether a partition can be viewed. */
  shows(partition: string): boolean {
    return this.#replica?.partitions.includes(partitionName(partition)) === true;
  }

  /** The state of a partition now: committed events, then this client's drafts. The same object until it changes. */
  view(partition?: string): Json {
    if (this.#replica === null) throw new ClientClosed("the client is not started");
    return this.#replica.dump(partitionName(this.#meant(partition)));
  }

  /** The last committed events of a partition that the store has, or those below an id. */
  async history(partition?: string, { before = Infinity, limit = 50 } = {}): Promise<History> {
    return this.#open().history(partitionName(this.#meant(partition)), before, limit);
  }

  /** Who is in a partition now, and what this tab says of itself there; needs `extensions: [presence()]`. */
  presence(partition?: string): PartitionPresence {
    const found = this.#config.extensions?.find((each) => each.name === "presence") as Presence | undefined;
    if (!found) throw new TypeError("there is no presence without extensions: [presence()]");
    return found.in(partitionName(this.#meant(partition)));
  }

  getStatus(): Status {
    return this.#status;
  }

  /** Wait until the client is live and has no pending draft.
   *
   * TimedOut, with the reason, after `timeoutMs`. NotCaughtUp when all is done that can be, and a partition or a draft is
   * set aside. ClientStopped when no connection is tried any more.
   */
  caughtUp(options: { timeoutMs?: number } = {}): Promise<void> {
    const done = untilCaughtUp(this, () => this.#log !== null);
    return within(done, options.timeoutMs, "the client has not caught up", () => this.#status);
  }

  /** Follow a partition: its history is fetched without disturbing the others. */
  async addPartition(partition: string): Promise<void> {
    const log = this.#open();
    const name = partitionName(partition);
    await log.follow(name, modelLabel(this.#config.model));
    await (this.#replica as Replica).open(name);
    this.emit({ type: "change", partition: name });
    if (this.#core) await this.#core.addPartition(name);
    else this.#tabs?.send({ type: "follow", partitions: [name] });
    this.#publish();
  }

  /** Leave a partition and forget its events, in all tabs; drafts in it are still sent. */
  async removePartition(partition: string): Promise<void> {
    this.#open();
    const name = partitionName(partition);
    (this.#replica as Replica).drop(name);
    if (this.#core) await this.#core.removePartition(name);
    else this.#tabs?.send({ type: "remove", partition: name });
    this.#publish();
  }

  #open(): EventLog {
    if (this.#log === null) throw new ClientClosed("the client is not started");
    if (this.#failure !== null) throw new ClientStopped(`the store failed: ${String(this.#failure)}`);
    return this.#log;
  }

  /** A write of this tab. */
  async #changed(change: Change): Promise<void> {
    this.#tabs?.send({ type: "change", change });
    await this.#replica?.receive(change);
  }

  #onMessage(message: TabMessage): void {
    const core = this.#core;
    switch (message.type) {
      case "change":
        this.#replica?.receive(message.change).catch((error: unknown) => this.#onFailed(error));
        break;
      case "status":
        if (core === null) {
          const { lastError } = this.#leader;
          const same = message.label === modelLabel(this.#config.model);
          this.#leader = same ? message.status : { ...message.status, lastError: OTHER_MODEL };
          const problem = this.#leader.lastError;
          if (problem !== null && problem.atMs !== lastError?.atMs) this.emit({ type: "problem", ...problem });
          this.#publish();
        }
        break;
      case "hello":
        if (core !== null) this.#sendStatus();
        else if (message.leader) this.#tabs?.send({ type: "follow", partitions: this.#replica?.partitions ?? [] });
        break;
      case "follow":
        for (const name of message.partitions) void core?.addPartition(name).catch((error) => this.#onFailed(error));
        break;
      case "remove":
        this.#replica?.drop(message.partition);
        void core?.removePartition(message.partition).catch((error) => this.#onFailed(error));
        break;
      case "retry":
        void core?.feed({ kind: "DraftRetried", id: message.id });
        break;
      case "pause":
      case "resume":
        this.#paused = message.type === "pause";
        core?.connection[message.type]();
        break;
      case "extension":
        this.#config.extensions?.find((each) => each.name === message.name)?.heard?.(message.data);
        break;
      default:
        message satisfies never;
    }
  }

  #sendStatus(): void {
    this.#tabs?.send({ type: "status", status: this.#leader, label: modelLabel(this.#config.model) });
  }

  #onApplied(applied: Applied): void {
    const replica = this.#replica as Replica;
    if (applied.drafts) {
      this.#pendingList = this.#rejectedList = null;
      if (replica.pending.size) void this.#core?.feed({ kind: "DraftsWaiting" });
    }
    this.#status = this.#makeStatus();
    for (const partition of applied.partitions) this.emit({ type: "change", partition });
    if (applied.drafts) this.emit({ type: "drafts" });
    for (const each of applied.settled) {
      const outcome = committed(each);
      this.#submission?.settle(each.id, outcome);
      this.emit({ type: "committed", outcome });
    }
    for (const record of applied.rejected) {
      const draft = rejection(record);
      this.#submission?.settle(record.id, draft);
      this.emit({ type: "rejected", draft });
    }
    this.#publish();
  }

  /** Bring the status up to date, here and in other tabs. */
  #publish(): void {
    const core = this.#core;
    if (core !== null) {
      const leader = leaderStatus(core);
      if (core.lastError !== null && isOver(core.lastError.code, leader, this.#status)) {
        core.lastError = leader.lastError = null;
      }
      if (!alike(leader, this.#leader)) {
        this.#leader = leader;
        this.#sendStatus();
      }
    }
    const status = this.#makeStatus();
    if (alike(status, this.#published)) return;
    this.#status = this.#published = status;
    this.emit({ type: "status", status });
  }

  #makeStatus(): Status {
    return {
      ...this.#leader,
      pending: this.#replica?.pending.size ?? 0,
      rejected: this.#replica?.rejected.size ?? 0,
      durable: (this.#log?.backend ?? this.#config.store).durable,
      leader: this.#core !== null,
    };
  }
}

/** A client of one server; `start` opens it. */
export const createSyncClient = (options: SyncClientOptions): SyncClient => new SyncClient(options);
