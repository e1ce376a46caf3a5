/** Undo and redo of the events that this tab submitted, as compensating events (CLIENT-20 to CLIENT-23).
 *
 * Each event that the program submits is a step. How it is taken back is worked out when the view applies it, and again
 * whenever the view applies it anew, so that it counts from the state that the event has met in the end. The newest steps
 * of one run are kept, in memory alone.
 */

import { ClientError, InvalidEvent, UndoRefused } from "./errors.js";
import type { Extension } from "./extension.js";
import { newId } from "./ids.js";
import { eventUndoRules } from "./model/event-undo.js";
import type { Model, ModelState } from "./model/model.js";
import { treeUndoRules } from "./model/tree-undo.js";
import { unchanged, type Compensation, type Left, type UndoRules } from "./model/undo-rules.js";
import { partitionName } from "./partitions.js";
import type { Session } from "./session.js";
import { parseEvent } from "./store/apply.js";
import type { Change, DraftRecord } from "./store/types.js";
import { checkForm, type Draft } from "./submission.js";
import type { Key, PartitionView, ViewTracker } from "./view/partition-view.js";
import type { Tracker } from "./view/replica.js";
import type { JsonObject } from "./wire.js";

/** Steps that can be taken back: as many as a person remembers. Each has its compensating events, 1 MB at most. */
const STEPS_MAX = 100;

/** How an event is taken back in one partition, as of when the view applied it last. */
interface UndoRecord {
  shown: boolean;
  compensation: Compensation | null;
}

/** One submitted event. `ids` are those of the drafts that did it, or took it back, last. */
interface Step {
  readonly partitions: readonly string[];
  readonly event: JsonObject;
  ids: readonly string[];
  /** By partition. */
  readonly records: Map<string, UndoRecord>;
  /** Of a step that was taken back: what that left in each partition. */
  readonly left: Map<string, readonly Left[]>;
}

const changedNothing = ({ records }: Step): boolean =>
  records.size > 0 && [...records.values()].every(({ compensation }) => compensation?.events.length === 0);

export class Undo implements Extension, Tracker {
  readonly name = "undo";
  #rules: UndoRules | null = null;
  #done: Step[] = [];
  #undone: Step[] = [];
  /** The steps whose events the views watch: by draft, and by committed_id. */
  readonly #drafts = new Map<string, Step>();
  readonly #events = new Map<number, Step>();
  /** Drafts of this extension that are about to be stored: the step that is taken back by the last of them, or null. */
  readonly #own = new Map<string, Step | null>();
  #work: Promise<unknown> = Promise.resolve();

  constructor(readonly rulesOf: (model: Model) => UndoRules) {}

  open({ session }: { readonly session: Session }): void {
    if (this.#rules) throw new ClientError("an undo extension belongs to one client: make another");
    this.#rules = this.rulesOf(session.config.model);
  }

  close(): void {
    for (const each of [this.#drafts, this.#events, this.#own]) each.clear();
    this.#done = [];
    this.#undone = [];
    this.#rules = null;
  }

  // -- what the program does ----------------------------------------------------------------------------------

  /** Drafts are stored and about to be shown. */
  readonly drafting = (drafts: readonly DraftRecord[]): void => {
    for (const { id, partitions, event } of drafts) {
      if (this.#own.has(id)) {
        if (this.#own.get(id) !== null) continue; // takes a step back
      } else {
        this.#undone = this.#undone.filter((step) => !step.partitions.some((name) => partitions.includes(name)));
      }
      const step: Step = { partitions, event: parseEvent(event), ids: [id], records: new Map(), left: new Map() };
      this.#drafts.set(id, step);
      this.#done.push(step);
      if (this.#done.length > STEPS_MAX) this.#drop(this.#done.shift() as Step);
    }
  };

  #drop(step: Step): void {
    for (const [key, each] of this.#drafts) if (each === step) this.#drafts.delete(key);
    for (const [key, each] of this.#events) if (each === step) this.#events.delete(key);
  }

  // -- what the views do --------------------------------------------------------------------------------------

  settled(events: Change["settled"]): void {
    for (const { id, committedId } of events) {
      const step = this.#drafts.get(id);
      if (step && this.#drafts.delete(id)) this.#events.set(committedId, step);
    }
  }

  of(partition: string): ViewTracker {
    const stepOf = ([kind, number, id]: Key) => (kind === 0 ? this.#events.get(number) : this.#drafts.get(id));
    return {
      apply: (key, event, state, change) => {
        const rules = this.#rules;
        const step = stepOf(key);
        if (rules && step) {
          const [shown, compensation] = rules.watch(state, event, change);
          step.records.set(partition, { shown, compensation });
          return shown;
        }
        const shown = change();
        const back = this.#own.get(key[2]);
        if (rules && back && !back.left.has(partition)) this.#noteLeft(rules, back, partition, state);
        return shown;
      },
      leftOut: (key) => {
        const record = stepOf(key)?.records.get(partition);
        if (record) record.shown = false;
      },
    };
  }

  #noteLeft(rules: UndoRules, step: Step, partition: string, state: ModelState): void {
    const places = step.records.get(partition)?.compensation?.left ?? [];
    step.left.set(partition, places.map(([place]) => [place, rules.fingerprint(state, place)]));
  }

  // -- undo and redo ------------------------------------------------------------------------------------------

  /** The event that `undo`, or `redo`, is about. */
  newest(partition: string | undefined, undone: boolean): JsonObject | null {
    return this.#find(partition, undone ? this.#undone : this.#done)?.event ?? null;
  }

  /** Take the newest step back; UndoRefused says why that cannot be, and the step is forgotten. */
  undo(session: Session, partition: string | undefined): Promise<Draft[]> {
    return this.#serially(async () => {
      const step = this.#take(partition, this.#done, "there is nothing to undo");
      try {
        await this.#checkAlive(session, step);
        const events = this.#compensation(session, step);
        const drafts = await this.#play(session, step, events, step);
        step.ids = drafts.map((draft) => draft.id);
        this.#undone.push(step);
        if (this.#undone.length > STEPS_MAX) this.#undone.shift();
        return drafts;
      } finally {
        this.#drop(step);
      }
    });
  }

  /** Do again what was taken back last; UndoRefused says why that cannot be, and the step is forgotten. */
  redo(session: Session, partition: string | undefined): Promise<Draft[]> {
    return this.#serially(async () => {
      const step = this.#take(partition, this.#undone, "there is nothing to redo");
      await this.#checkAlive(session, step);
      this.#checkUnchanged(session, step, step.left);
      return this.#play(session, step, [step.event], null);
    });
  }

  /** Submit all of them, or none and UndoRefused. With `back` they take that step back; else they are one themselves. */
  async #play(session: Session, step: Step, events: readonly JsonObject[], back: Step | null): Promise<Draft[]> {
    const bytesMax = session.core?.state.limits.max_message_bytes ?? null;
    const inputs = events.map((event) => ({ id: newId(), partitions: step.partitions, event }));
    back?.left.clear();
    for (const [at, { id }] of inputs.entries()) {
      // What was left is read when the last of them is shown.
      this.#own.set(id, back && at < inputs.length - 1 ? { ...back, left: new Map() } : back);
    }
    try {
      const drafts = inputs.map((input) => checkForm(input, session.config.model, bytesMax));
      return (await session.submission.submit(drafts)).map((record) => session.draft(record));
    } catch (error) {
      if (error instanceof InvalidEvent) throw new UndoRefused("refused", error.message, error.errors);
      throw error;
    } finally {
      for (const { id } of inputs) this.#own.delete(id);
    }
  }

  #compensation(session: Session, step: Step): readonly JsonObject[] {
    const records = step.partitions.map((name) => step.records.get(name));
    if (!records.length || records.some((record) => !record || (record.shown && !record.compensation))) {
      throw new UndoRefused("no_inverse", "nothing is known that takes this event back");
    }
    if (records.some((record) => !record?.shown)) {
      throw new UndoRefused("changed", "the event does not fit what others have done");
    }
    const found = [...step.records].map(([name, record]) => [name, record.compensation as Compensation] as const);
    this.#checkUnchanged(session, step, new Map(found.map(([name, { left }]) => [name, left])));
    const plans = found.map(([name, { events }]) => {
      const { state } = session.replica.view(name) as PartitionView;
      return events.map((event) => (this.#rules as UndoRules).fitted(state, event));
    });
    if (plans.some((plan) => JSON.stringify(plan) !== JSON.stringify(plans[0]))) {
      throw new UndoRefused("no_inverse", "taking it back is another thing in each of its partitions");
    }
    return plans[0] as JsonObject[];
  }

  async #checkAlive(session: Session, step: Step): Promise<void> {
    const { pending, rejected } = session.replica;
    if (step.ids.some((id) => rejected.has(id))) throw new UndoRefused("rejected", "the server has rejected it");
    const others = step.ids.filter((id) => !pending.has(id));
    if ((await session.log.settled(others)).length < others.length) {
      throw new UndoRefused("gone", "it is no longer in this client's store");
    }
    for (const name of step.partitions) {
      if (!session.replica.view(name)) throw new UndoRefused("gone", `${JSON.stringify(name)} is no longer followed`);
    }
  }

  #checkUnchanged(session: Session, step: Step, left: ReadonlyMap<string, readonly Left[]>): void {
    const rules = this.#rules as UndoRules;
    for (const name of step.partitions) {
      const view = session.replica.view(name);
      if (view && !unchanged(rules, view.state, left.get(name) ?? [])) {
        throw new UndoRefused("changed", "somebody has changed it since");
      }
    }
  }

  #find(partition: string | undefined, steps: readonly Step[]): Step | undefined {
    const name = partition === undefined ? undefined : partitionName(partition);
    return [...steps].reverse().find((step) => (name === undefined || step.partitions.includes(name)) && !changedNothing(step));
  }

  #take(partition: string | undefined, steps: Step[], nothing: string): Step {
    const step = this.#find(partition, steps);
    if (!step) throw new UndoRefused("nothing", nothing);
    steps.splice(steps.indexOf(step), 1);
    return step;
  }

  /** One after the other: each counts from what the one before left. */
  #serially<R>(body: () => Promise<R>): Promise<R> {
    const done = this.#work.then(body);
    this.#work = done.catch(() => undefined);
    return done;
  }
}

/** Undo and redo of tree actions for one client: `extensions: [treeUndo()]`. */
export const treeUndo = (): Undo => new Undo(() => treeUndoRules as UndoRules);

/** Undo and redo of the events of a model that declares it: `extensions: [eventUndo()]`. */
export const eventUndo = (): Undo => new Undo((model) => eventUndoRules(model) as UndoRules);
