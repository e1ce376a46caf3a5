/** A started client: its store, what this tab shows of it, and the connection while this tab leads. */

import { extensionOf, type ClientEvent, type Config, type Rejected, type Status } from "./config.js";
import { Core } from "./core.js";
import { ClientClosed, ClientStopped } from "./errors.js";
import { isOver } from "./problems.js";
import { alike, leaderStatus, OFFLINE, OTHER_MODEL, within, type LeaderStatus } from "./status.js";
import { parseEvent } from "./store/apply.js";
import { openLog, type EventLog } from "./store/log.js";
import type { Change, DraftRecord } from "./store/types.js";
import { committed, rejection, Submission, type Draft } from "./submission.js";
import { modelLabel } from "./sync/bootstrap.js";
import { joinTabs, type TabMessage, type Tabs } from "./tabs.js";
import type { Undo } from "./undo.js";
import { Replica, type Applied } from "./view/replica.js";

export class Session {
  readonly replica: Replica;
  readonly submission: Submission;
  readonly label: string;
  core: Core | null = null;
  #tabs: Tabs | null = null;
  #leading: Promise<void> = Promise.resolve();
  #leader: LeaderStatus = OFFLINE;
  #published: Status | null = null;
  #pending: readonly Draft[] | null = null;
  #rejected: readonly Rejected[] | null = null;
  #ended = false;
  #failure: unknown = null;
  paused = false;
  status: Status;

  private constructor(
    readonly config: Config,
    readonly log: EventLog,
    readonly emit: (event: ClientEvent) => void,
  ) {
    const { model } = config;
    const undo = extensionOf<Undo>(config, "undo");
    this.label = modelLabel(model);
    this.replica = new Replica(this, model, extensionOf(config, "atomic"), undo);
    this.submission = new Submission(log, this.replica, (change) => this.changed(change), undo?.drafting);
    this.status = this.#makeStatus();
  }

  /** Open the store and show what it has. */
  static async open(config: Config, emit: (event: ClientEvent) => void): Promise<Session> {
    const log = await openLog(config.store, config.clientId, (error) => {
      const message = `the browser stores nothing (${String(error)}): drafts live as long as this page`;
      emit({ type: "problem", code: "storage_refused", message, atMs: Date.now() });
    });
    return new Session(config, log, emit);
  }

  /** Show the partitions, join the other tabs, and connect when this tab leads. */
  async start(): Promise<void> {
    const { log, replica, label } = this;
    const { clientId, extensions, partitions } = this.config;
    for (const name of partitions ?? (await log.partitions())) {
      await log.follow(name, label);
      await replica.open(name);
    }
    const shared = this.config.tabs === false ? null : log.backend.shared;
    const tabs = await joinTabs(shared, (message) => this.#onMessage(message));
    this.#tabs = tabs;
    await replica.reload();
    for (const each of extensions) each.open?.({ clientId, tabs, emit: this.emit, session: this });
    tabs.send({ type: "hello", leader: false });
    tabs.send({ type: "follow", partitions: replica.partitions });
    this.publish();
    this.#leading = this.#lead(tabs).catch((error: unknown) => this.fail(error));
    // Without other tabs nobody else leads: be ready when this resolves.
    if (shared === null) await this.#leading;
  }

  /** Wait for the lead, then keep the store in step with the server. */
  async #lead(tabs: Tabs): Promise<void> {
    const { config, log, replica, label } = this;
    await tabs.lead();
    if (this.#ended) return;
    await replica.reload();
    const { notes } = await log.load();
    const rows = await Promise.all(replica.partitions.map((name) => log.follow(name, label)));
    const core = new Core(config, log, label, notes, rows, this);
    if (this.#ended) return;
    this.core = core;
    core.connection.start();
    if (this.paused) core.connection.pause();
    tabs.send({ type: "hello", leader: true });
    this.publish();
  }

  async close(): Promise<void> {
    this.#ended = true;
    this.submission.close();
    for (const each of this.config.extensions) each.close?.();
    await this.core?.close();
    this.core = null;
    await this.replica.close();
    this.#tabs?.close();
    await this.#leading;
    await this.log.close();
    this.#leader = OFFLINE;
    this.publish();
  }

  /** The store failed: what was acknowledged is safe, and nothing goes on. */
  fail(error: unknown): void {
    if (this.#failure !== null || this.#ended) return;
    this.#failure = error;
    const message = `the store failed: ${String(error)}`;
    this.#leader = { ...this.#leader, phase: "offline", stopped: message };
    this.emit({ type: "problem", code: "store_failed", message, atMs: Date.now() });
    void this.core?.connection.close();
    this.core = null;
    this.submission.close(new ClientStopped(message));
    this.publish();
  }

  /** Throws when nothing can be stored any more. */
  check(): void {
    if (this.#ended) throw new ClientClosed("the client is not started");
    if (this.#failure !== null) throw new ClientStopped(`the store failed: ${String(this.#failure)}`);
  }

  /** Let the tab that has the connection do something: here, or where the message arrives. */
  async lead(here: (core: Core) => unknown, message: TabMessage): Promise<void> {
    if (this.core) await here(this.core);
    else this.#tabs?.send(message);
  }

  /** Go offline, or online, in all tabs. */
  connect(type: "pause" | "resume"): void {
    this.paused = type === "pause";
    void this.lead((core) => core.connection[type](), { type });
  }

  /** A write of this tab. */
  async changed(change: Change): Promise<void> {
    this.#tabs?.send({ type: "change", change });
    await this.replica.receive(change);
  }

  // -- drafts -------------------------------------------------------------------------------------------------

  draft(record: DraftRecord): Draft {
    const { id, partitions, draftClock, createdAt } = record;
    const settled = (options: { timeoutMs?: number } = {}) => {
      const outcome = this.submission.outcome(id);
      return within(outcome, options.timeoutMs, `the draft ${JSON.stringify(id)} was not answered`, () => this.status);
    };
    return { id, partitions, draftClock, createdAt, event: parseEvent(record.event), settled };
  }

  get pending(): readonly Draft[] {
    return (this.#pending ??= [...this.replica.pending.values()].map((record) => this.draft(record)));
  }

  get rejected(): readonly Rejected[] {
    return (this.#rejected ??= [...this.replica.rejected.values()]
      .sort((a, b) => a.draftClock - b.draftClock)
      .map(rejection));
  }

  // -- what happens -------------------------------------------------------------------------------------------

  #onMessage(message: TabMessage): void {
    const { core, replica } = this;
    const failed = (error: unknown) => this.fail(error);
    switch (message.type) {
      case "change":
        replica.receive(message.change).catch(failed);
        break;
      case "status":
        if (core === null) {
          const { lastError } = this.#leader;
          const same = message.label === this.label;
          this.#leader = same ? message.status : { ...message.status, lastError: OTHER_MODEL };
          const problem = this.#leader.lastError;
          if (problem !== null && problem.atMs !== lastError?.atMs) this.emit({ type: "problem", ...problem });
          this.publish();
        }
        break;
      case "hello":
        if (core !== null) this.#sendStatus();
        else if (message.leader) this.#tabs?.send({ type: "follow", partitions: replica.partitions });
        break;
      case "follow":
        for (const name of message.partitions) void core?.addPartition(name).catch(failed);
        break;
      case "remove":
        replica.drop(message.partition);
        void core?.removePartition(message.partition).catch(failed);
        break;
      case "retry":
        void core?.feed({ kind: "DraftRetried", id: message.id });
        break;
      case "pause":
      case "resume":
        this.paused = message.type === "pause";
        core?.connection[message.type]();
        break;
      case "extension":
        extensionOf(this.config, message.name)?.heard?.(message.data);
        break;
      default:
        message satisfies never;
    }
  }

  #sendStatus(): void {
    this.#tabs?.send({ type: "status", status: this.#leader, label: this.label });
  }

  onApplied(applied: Applied): void {
    if (applied.drafts) {
      this.#pending = this.#rejected = null;
      if (this.replica.pending.size) void this.core?.feed({ kind: "DraftsWaiting" });
    }
    this.status = this.#makeStatus();
    for (const partition of applied.partitions) this.emit({ type: "change", partition });
    if (applied.drafts) this.emit({ type: "drafts" });
    for (const each of applied.settled) {
      const outcome = committed(each);
      this.submission.settle(each.id, outcome);
      this.emit({ type: "committed", outcome });
    }
    for (const record of applied.rejected) {
      const draft = rejection(record);
      this.submission.settle(record.id, draft);
      this.emit({ type: "rejected", draft });
    }
    this.publish();
  }

  /** Bring the status up to date, here and in other tabs. */
  publish(): void {
    const { core } = this;
    if (core !== null) {
      const leader = leaderStatus(core);
      if (core.lastError !== null && isOver(core.lastError.code, leader, this.status)) {
        core.lastError = leader.lastError = null;
      }
      if (!alike(leader, this.#leader)) {
        this.#leader = leader;
        this.#sendStatus();
      }
    }
    const status = this.#makeStatus();
    if (alike(status, this.#published)) return;
    this.status = this.#published = status;
    this.emit({ type: "status", status });
  }

  #makeStatus(): Status {
    return {
      ...this.#leader,
      pending: this.#ended ? 0 : this.replica.pending.size,
      rejected: this.#ended ? 0 : this.replica.rejected.size,
      durable: this.log.backend.durable,
      leader: this.core !== null,
    };
  }
}
