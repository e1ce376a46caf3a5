/** The client a program uses. */

import { Actions } from "./actions.js";
import {
  configure,
  extensionOf,
  type Config,
  type HistoryPage,
  type Rejected,
  type Status,
  type SyncClientOptions,
} from "./config.js";
import { ClientClosed, ClientError, UnknownDraft } from "./errors.js";
import type { Extension } from "./extension.js";
import type { History } from "./history.js";
import type { Tree } from "./model/tree-shorthands.js";
import { transactionOf } from "./outgoing.js";
import { partitionName } from "./partitions.js";
import type { PartitionPresence, Presence } from "./presence.js";
import { Session } from "./session.js";
import { OFFLINE, untilCaughtUp, within } from "./status.js";
import { parseEvent } from "./store/apply.js";
import type { NewDraft } from "./store/log.js";
import { checkForm, type Draft, type EventInput } from "./submission.js";
import type { Transactions } from "./transactions.js";
import type { Undo } from "./undo.js";
import type { Json, JsonObject } from "./wire.js";

const NONE: readonly never[] = [];

export class SyncClient extends Actions<Promise<Draft>> {
  readonly #config: Config;
  #session: Session | null = null;
  #starting = false;
  #paused = false;
  #status: Status;

  constructor(given: SyncClientOptions) {
    super();
    this.#config = configure(given);
    const { durable } = this.#config.store;
    this.#status = { ...OFFLINE, pending: 0, rejected: 0, durable, leader: false };
    if (given.onEvent) this.subscribe(given.onEvent);
  }

  /** Open the store, show what it has, and connect; resolves when the views can be read, online or not. */
  async start(): Promise<void> {
    if (this.#session || this.#starting) throw new ClientError("the client is started already");
    this.#starting = true;
    try {
      this.#session = await Session.open(this.#config, (event) => {
        if (event.type === "status") this.#status = event.status;
        this.emit(event);
      });
      this.#session.paused = this.#paused;
      await this.#session.start();
    } finally {
      this.#starting = false;
    }
  }

  /** Disconnect, store the views and close the store. Pending drafts stay in it. */
  async stop(): Promise<void> {
    const session = this.#session;
    if (session === null) return;
    this.#session = null;
    await session.close();
  }

  #open(): Session {
    if (this.#session === null) throw new ClientClosed("the client is not started");
    this.#session.check();
    return this.#session;
  }

  /** Go offline until `resume`, in all tabs. */
  pause(): void {
    this.#paused = true;
    this.#session?.connect("pause");
  }

  /** Go online now; also after the client stopped because another one took its place. */
  resume(): void {
    this.#paused = false;
    this.#session?.connect("resume");
  }

  // -- submitting ---------------------------------------------------------------------------------------------

  /** Check an event, store it as a draft and show it in the views; it goes out as soon as it can.
   *
   * InvalidEvent, with nothing stored, when its form is wrong or the current view refuses it.
   */
  async submitEvent(input: EventInput): Promise<Draft> {
    return (await this.submitEvents([input]))[0] as Draft;
  }

  /** Several events in one write: all of them are stored, or none. Each is judged by the views those before leave. */
  async submitEvents(inputs: readonly EventInput[]): Promise<Draft[]> {
    return this.#submit(this.#checked(inputs), []);
  }

  /** Several events that the server commits as a whole or not at all, and that are shown together or not at all.
   *
   * TransactionRefused, with nothing stored, when the server is known not to take it; it is never sent in parts. Needs
   * `extensions: [transactions()]`.
   */
  async transaction(inputs: readonly EventInput[]): Promise<Draft[]> {
    return this.#submitTogether(this.#checked(inputs), []);
  }

  #submitTogether(drafts: readonly NewDraft[], again: readonly string[]): Promise<Draft[]> {
    this.#extension<Transactions>("atomic", "transactions").check(drafts, this.#session?.core?.state);
    const together = drafts[0]?.id ?? "";
    return this.#submit(drafts.map((draft) => ({ ...draft, together })), again);
  }

  #checked(inputs: readonly EventInput[]): NewDraft[] {
    const bytesMax = this.#open().core?.state.limits.max_message_bytes ?? null;
    return inputs.map((input) => {
      const partitions = input.partitions ?? [input.partition ?? this.#meant(undefined)];
      return checkForm({ ...input, partitions }, this.#config.model, bytesMax);
    });
  }

  async #submit(drafts: readonly NewDraft[], again: readonly string[]): Promise<Draft[]> {
    const session = this.#open();
    const records = await session.submission.submit(drafts, again);
    return records.map((record) => session.draft(record));
  }

  protected act(event: JsonObject, partition: string | undefined): Promise<Draft> {
    return this.submitEvent(partition === undefined ? { event } : { event, partition });
  }

  protected newTree(submit: (event: JsonObject) => Promise<Draft>, target: string): Tree<Promise<Draft>> {
    const made = this.#config.model.tree?.(submit, target);
    if (!made) throw new TypeError("there are no trees in this model");
    return made;
  }

  // -- drafts -------------------------------------------------------------------------------------------------

  /** The drafts the server has not answered yet, oldest first. The same list until it changes. */
  pending(): readonly Draft[] {
    return this.#session?.pending ?? NONE;
  }

  /** The drafts the server refused, with its reasons, oldest first. The same list until it changes. */
  rejected(): readonly Rejected[] {
    return this.#session?.rejected ?? NONE;
  }

  /** Try a rejected draft again, behind everything that is pending now, or one that is set aside at once.
   *
   * Those of its transaction go with it.
   */
  async retry(id: string): Promise<Draft> {
    const session = this.#open();
    const { pending, rejected } = session.replica;
    const waiting = pending.get(id);
    if (waiting) {
      await session.lead((core) => core.feed({ kind: "DraftRetried", id }), { type: "retry", id });
      return session.draft(waiting);
    }
    const record = rejected.get(id);
    if (!record) throw new UnknownDraft(id);
    const records = transactionOf(record, rejected.values());
    const inputs = this.#checked(records.map((each) => ({ ...each, event: parseEvent(each.event) })));
    const ids = records.map((each) => each.id);
    const drafts = await (record.batch === undefined ? this.#submit(inputs, ids) : this.#submitTogether(inputs, ids));
    return drafts.find((draft) => draft.id === id) as Draft;
  }

  /** Forget a rejected draft, with those of its transaction. */
  async discard(id: string): Promise<void> {
    const session = this.#open();
    const { rejected } = session.replica;
    const record = rejected.get(id);
    const ids = record ? transactionOf(record, rejected.values()).map((each) => each.id) : [id];
    await session.changed(await session.log.discard(ids));
  }

  // -- partitions and what is shown ---------------------------------------------------------------------------

  /** The partition that is meant when none is named. */
  #meant(partition: string | undefined): string {
    if (partition !== undefined) return partitionName(partition);
    const [only, ...others] = this.#session?.replica.partitions ?? NONE;
    if (only === undefined || others.length) throw new TypeError("name the partition: this client follows not just one");
    return only;
  }

  /** Whether a partition can be viewed. */
  shows(partition: string): boolean {
    return this.#session?.replica.partitions.includes(partitionName(partition)) === true;
  }

  /** The state of a partition now: committed events, then this client's drafts. The same object until it changes. */
  view(partition?: string): Json {
    if (this.#session === null) throw new ClientClosed("the client is not started");
    return this.#session.replica.dump(this.#meant(partition));
  }

  /** Follow a partition: its history is fetched without disturbing the others. */
  async addPartition(partition: string): Promise<void> {
    const session = this.#open();
    const name = partitionName(partition);
    await session.log.follow(name, session.label);
    await session.replica.open(name);
    this.emit({ type: "change", partition: name });
    await session.lead((core) => core.addPartition(name), { type: "follow", partitions: [name] });
    session.publish();
  }

  /** Leave a partition and forget its events, in all tabs; drafts in it are still sent. */
  async removePartition(partition: string): Promise<void> {
    const session = this.#open();
    const name = partitionName(partition);
    session.replica.drop(name);
    await session.lead((core) => core.removePartition(name), { type: "remove", partition: name });
    session.publish();
  }

  // -- status -------------------------------------------------------------------------------------------------

  getStatus(): Status {
    return this.#session?.status ?? this.#status;
  }

  /** Wait until the client is live and has no pending draft.
   *
   * TimedOut, with the reason, after `timeoutMs`. NotCaughtUp when all is done that can be, and a partition or a draft is
   * set aside. ClientStopped when no connection is tried any more.
   */
  caughtUp(options: { timeoutMs?: number } = {}): Promise<void> {
    const done = untilCaughtUp(this, () => this.#session !== null);
    return within(done, options.timeoutMs, "the client has not caught up", () => this.getStatus());
  }

  // -- extensions ---------------------------------------------------------------------------------------------

  #extension<E extends Extension>(name: string, factory: string): E {
    const found = extensionOf<E>(this.#config, name);
    if (!found) throw new TypeError(`this needs extensions: [${factory}()]`);
    return found;
  }

  /** Who is in a partition now, and what this tab says of itself there; needs `extensions: [presence()]`. */
  presence(partition?: string): PartitionPresence {
    return this.#extension<Presence>("presence", "presence").in(this.#meant(partition));
  }

  /** The last committed events of a partition, or those below an id; needs `extensions: [history()]`. */
  async history(partition?: string, bounds: { before?: number; limit?: number } = {}): Promise<HistoryPage> {
    this.#open();
    return this.#extension<History>("history", "history").page(this.#meant(partition), bounds);
  }

  /** Take back the newest event that this tab submitted, in one partition or in any (CLIENT-20).
   *
   * UndoRefused says why that cannot be. Needs `extensions: [treeUndo()]`, or `[eventUndo()]`.
   */
  async undo(partition?: string): Promise<Draft[]> {
    return this.#undoing().undo(this.#open(), partition);
  }

  /** Do again what was taken back last; see `undo`. */
  async redo(partition?: string): Promise<Draft[]> {
    return this.#undoing().redo(this.#open(), partition);
  }

  /** The event that `undo` would take back; null when there is none. */
  undoable(partition?: string): JsonObject | null {
    return this.#undoing().newest(partition, false);
  }

  /** The event that `redo` would do again; null when there is none. */
  redoable(partition?: string): JsonObject | null {
    return this.#undoing().newest(partition, true);
  }

  #undoing(): Undo {
    return this.#extension("undo", "treeUndo");
  }
}

/** A client of one server; `start` opens it. */
export const createSyncClient = (options: SyncClientOptions): SyncClient => new SyncClient(options);
