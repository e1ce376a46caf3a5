/** Declarative reducers, equal to those of the server: what events do to a state, written as data.
 *
 * `unisono model check` finds what is wrong with a `reducers.json`; here it is taken as it is. An operation that cannot
 * be performed throws, and the event changes nothing.
 */

import { byCodePoints } from "../partitions.js";
import type { FieldError, Json, JsonObject } from "../wire.js";
import { Journal } from "./journal.js";
import { EVENT_TYPE, type Model, type ModelState } from "./model.js";
import { adopted, bare, has, isPlain, own, plain, same } from "./values.js";

/** The content of a `reducers.json`. */
export type Reducers = { readonly [schema: string]: unknown };

/** An event as a function of the program sees it. */
export interface ModelEvent {
  readonly schema: string;
  readonly data: Json;
  readonly meta: JsonObject;
}

/** By schema, what an event makes of a state. A function returns another state and leaves the one it is given as it is;
 * one that throws changes nothing. */
export type Functions = { readonly [schema: string]: (state: JsonObject, event: ModelEvent) => JsonObject };

export interface EventModelOptions {
  /** The content of the model's `reducers.json`. */
  readonly reducers: Reducers;
  /** The model's name, as in its `model.toml`. */
  readonly name?: string;
  /** The model's version; with the digest, partitions start from the server's snapshots. */
  readonly version?: number;
  /** The model's digest; `unisono model export` prints all of these. */
  readonly digest?: string;
  /** What schemas do that are reduced by code on the server: `unisono model check --js` compares both. */
  readonly functions?: Functions;
  /** Checks of the program before an event is stored, as of a JSON Schema. */
  readonly validate?: (schema: string, data: Json) => FieldError[];
}

/** What an operation meets that it cannot be performed on. */
export class DeclaredFailure extends Error {}

export interface Context {
  readonly schema: unknown;
  readonly root: JsonObject;
  readonly journal: Journal;
  readonly data: Json;
  readonly meta: Json;
}

export type Fields = { [key: string]: any };

export class EventState implements ModelState {
  readonly journal = new Journal();
  root: JsonObject;

  constructor(value: JsonObject = {}) {
    this.root = adopted(value) as JsonObject;
  }

  mark(): number {
    return this.journal.mark();
  }

  rollback(mark: number): void {
    this.journal.rollback(mark);
  }

  settle(): void {
    this.journal.settle();
  }

  dump(): Json {
    return plain(this.root);
  }

  /** Replace everything. */
  restart(root: unknown): void {
    if (!isPlain(root)) throw new DeclaredFailure("a function returns the state of a partition, an object");
    const before = this.root;
    this.root = root;
    this.journal.note(() => (this.root = before));
  }
}

export interface EventModel extends Model<EventState> {
  readonly reducers: Reducers;
}

/** What is declared for a schema. */
export const declaredFor = (reducers: Reducers, schema: unknown): Fields =>
  (typeof schema === "string" && has(reducers, schema) ? reducers[schema] : {}) as Fields;

/** What expressions read. */
export function contextOf(state: EventState, event: JsonObject): Context {
  const payload = event["payload"] as JsonObject;
  const meta = own(payload, "meta") ?? null;
  return {
    root: state.root,
    journal: state.journal,
    schema: own(payload, "schema"),
    data: own(payload, "data") as Json,
    meta: isPlain(meta) ? meta : {},
  };
}

/** Events of a model whose reducers are declared, or written as functions. A schema without either changes nothing. */
export function eventModel(options: EventModelOptions): EventModel {
  const { reducers, validate, functions = {} } = options;
  const reduce = (state: EventState, event: JsonObject): void => {
    const mark = state.mark();
    try {
      const here = contextOf(state, event);
      const { schema, data, meta } = here as Context & ModelEvent;
      const run = typeof schema === "string" ? own(functions, schema) : undefined;
      if (run) state.restart(run(state.root, { schema, data, meta }));
      else perform(declaredFor(reducers, schema)["do"] ?? [], here);
    } catch (error) {
      state.rollback(mark);
      throw error;
    }
  };
  return {
    reducers,
    profile: "canonical",
    half: "data",
    name: options.name ?? "",
    version: options.version ?? null,
    digest: options.digest ?? null,
    empty: () => new EventState(),
    load(dumped) {
      if (!isPlain(dumped)) throw new TypeError("the state of a partition is a JSON object");
      return new EventState(dumped);
    },
    shape: (event) => shape(event, validate),
    refusals(state, event) {
      const here = contextOf(state, event);
      const found: FieldError[] = [];
      for (const check of (declaredFor(reducers, here.schema)["check"] ?? []) as Fields[]) {
        try {
          if (!holds(check["refuse_if"], here)) continue;
          const field = ["event.payload.data", check["field"] ?? ""].filter(Boolean).join(".");
          found.push({ field, message: check["message"] });
        } catch (error) {
          if (!(error instanceof DeclaredFailure)) throw error;
          found.push({ field: "event.payload.schema", message: `a check failed: ${error.message}` });
        }
      }
      return found;
    },
    apply: reduce,
    replay(state, event) {
      if (own(event, "type") !== EVENT_TYPE) return false;
      const payload = own(event, "payload");
      if (!isPlain(payload) || typeof own(payload, "schema") !== "string" || !has(payload, "data")) return false;
      try {
        reduce(state, event);
        return true;
      } catch (error) {
        if (error instanceof DeclaredFailure || has(functions, payload["schema"] as string)) return false;
        throw error;
      }
    },
  };
}

function shape(event: JsonObject, validate: EventModelOptions["validate"]): FieldError[] {
  const PAYLOAD = "event.payload";
  if (own(event, "type") !== EVENT_TYPE) return [{ field: "event.type", message: `must be "${EVENT_TYPE}"` }];
  const payload = own(event, "payload");
  if (!isPlain(payload)) return [{ field: PAYLOAD, message: "must be an object" }];
  const errors: FieldError[] = [];
  const schema = own(payload, "schema");
  if (typeof schema !== "string" || !schema) {
    errors.push({ field: `${PAYLOAD}.schema`, message: "must be a non-empty string" });
  }
  if (!has(payload, "data")) errors.push({ field: `${PAYLOAD}.data`, message: "is required" });
  else if (!errors.length && validate) errors.push(...validate(schema as string, payload["data"] as Json));
  const meta = own(payload, "meta");
  if (meta !== undefined && !isPlain(meta)) errors.push({ field: `${PAYLOAD}.meta`, message: "must be an object" });
  return errors;
}

// -- reading --------------------------------------------------------------------------------------------------

/** What lies at a path through objects; undefined where there is nothing. */
export function inside(value: Json | undefined, path: readonly string[]): Json | undefined {
  let here = value;
  for (const step of path) {
    if (!isPlain(here)) return undefined;
    here = own(here, step);
  }
  return here;
}

/** The value of an expression; undefined where there is nothing. */
export function evaluate(expression: any, here: Context): Json | undefined {
  if (!isPlain(expression)) return expression as Json;
  const fields: Fields = expression;
  if (has(fields, "const")) return fields["const"];
  if (has(fields, "object")) {
    const made = bare();
    for (const key of Object.keys(fields["object"])) {
      const value = evaluate(fields["object"][key], here);
      if (value !== undefined) made[key] = value;
    }
    return made;
  }
  if (has(fields, "array")) {
    return (fields["array"] as unknown[]).map((each) => evaluate(each, here)).filter((each) => each !== undefined);
  }
  if (has(fields, "state")) return found(inside(here.root, pathOf(fields["state"], here)), fields);
  const kind = has(fields, "data") ? "data" : "meta";
  const path = fields[kind];
  const steps: string[] = typeof path === "string" ? (path ? path.split(".") : []) : path;
  return found(inside(here[kind], steps), fields);
}

const found = (value: Json | undefined, fields: Fields): Json | undefined =>
  value === undefined ? own(fields, "default") : value;

export const pathOf = (path: readonly unknown[], here: Context): string[] =>
  path.map((each) => {
    const step = evaluate(each, here);
    if (typeof step !== "string") throw new DeclaredFailure("a step of a path is a text");
    return step;
  });

/** Below, equal or above 0 for two numbers, or two texts by code points; 0 for anything else. */
function compare(left: Json | undefined, right: Json | undefined): number {
  if (typeof left === "number" && typeof right === "number") return left - right;
  return typeof left === "string" && typeof right === "string" ? byCodePoints(left, right) : 0;
}

const alike = (left: Json | undefined, right: Json | undefined): boolean => left !== undefined && same(left, right);

export function holds(condition: Fields, here: Context): boolean {
  const pair = (parts: unknown[]) => parts.map((each) => evaluate(each, here)) as [Json | undefined, Json | undefined];
  if (has(condition, "exists")) return evaluate(condition["exists"], here) !== undefined;
  if (has(condition, "not")) return !holds(condition["not"], here);
  if (has(condition, "all")) return condition["all"].every((each: Fields) => holds(each, here));
  if (has(condition, "any")) return condition["any"].some((each: Fields) => holds(each, here));
  if (has(condition, "equals")) return alike(...pair(condition["equals"]));
  if (has(condition, "less")) return compare(...pair(condition["less"])) < 0;
  throw new TypeError(`${JSON.stringify(condition)} is no condition`);
}

// -- operations -----------------------------------------------------------------------------------------------

function setKey(journal: Journal, holder: JsonObject, key: string, value: Json): void {
  const before = own(holder, key);
  holder[key] = value;
  journal.note(
    () => {
      if (before === undefined) delete holder[key];
      else holder[key] = before;
    },
    holder,
    key,
  );
}

/** The object that holds the last step of a path; missing steps become objects. */
function holderOf(here: Context, path: readonly string[]): JsonObject {
  let holder = here.root;
  for (const step of path.slice(0, -1)) {
    if (!has(holder, step)) setKey(here.journal, holder, step, bare());
    const next = holder[step];
    if (!isPlain(next)) throw new DeclaredFailure("a path leads through a value that is not an object");
    holder = next;
  }
  return holder;
}

function perform(operations: readonly Fields[], here: Context): void {
  for (const operation of operations) {
    if (has(operation, "when")) {
      perform((holds(operation["when"], here) ? operation["do"] : operation["else"]) ?? [], here);
      continue;
    }
    const [kind, run] = Object.entries(OPERATIONS).find(([name]) => has(operation, name)) ?? [];
    if (kind === undefined || run === undefined) throw new TypeError(`${JSON.stringify(operation)} is no operation`);
    run(operation, operation[kind], here);
  }
}

const OPERATIONS: { [kind: string]: (operation: Fields, path: unknown[], here: Context) => void } = {
  put(operation, path, here) {
    const value = evaluate(operation["value"], here);
    if (value === undefined) return;
    const steps = pathOf(path, here);
    setKey(here.journal, holderOf(here, steps), steps.at(-1) as string, adopted(value));
  },

  merge(operation, path, here) {
    const value = evaluate(operation["value"], here);
    if (value === undefined) return;
    if (!isPlain(value)) throw new DeclaredFailure("only an object is merged");
    const steps = pathOf(path, here);
    const holder = holderOf(here, steps);
    const key = steps.at(-1) as string;
    if (!has(holder, key)) setKey(here.journal, holder, key, bare());
    const target = holder[key];
    if (!isPlain(target)) throw new DeclaredFailure("an object is merged into an object only");
    for (const each of Object.keys(value)) {
      if (!(operation["without"] ?? []).includes(each)) setKey(here.journal, target, each, adopted(value[each] as Json));
    }
  },

  remove(_operation, path, here) {
    const steps = pathOf(path, here);
    const holder = inside(here.root, steps.slice(0, -1));
    const key = steps.at(-1) as string;
    if (!isPlain(holder) || !has(holder, key)) return;
    const before = holder[key] as Json;
    delete holder[key];
    here.journal.note(() => (holder[key] = before), holder, key);
  },

  increment(operation, path, here) {
    const step = evaluate(has(operation, "by") ? operation["by"] : 1, here);
    if (step === undefined) return;
    const steps = pathOf(path, here);
    const holder = holderOf(here, steps);
    const key = steps.at(-1) as string;
    const now = has(holder, key) ? holder[key] : 0;
    if (typeof step !== "number" || typeof now !== "number") {
      throw new DeclaredFailure("only a number is added to a number");
    }
    if (!Number.isFinite(now + step)) throw new DeclaredFailure("the sum is no number");
    setKey(here.journal, holder, key, now + step);
  },

  insert(operation, path, here) {
    const value = evaluate(operation["value"], here);
    if (value === undefined) return;
    const { by, order, position } = operation;
    const identity = identityOf(value, by);
    if (identity === undefined) throw new DeclaredFailure("the new element has no such field to be known by");
    const side = isPlain(position) ? (Object.keys(position)[0] as string) : (position ?? "last");
    const beside = isPlain(position) ? evaluate(position[side], here) : undefined;
    const elements = listAt(path, here, true) as Json[];
    if (!operation["repeat"]) takeOut(here, elements, identity, by);
    let at = elements.length;
    if (order !== undefined && order !== null) {
      const rank = inside(value, [order]);
      const above = elements.findIndex((each) => compare(inside(each, [order]), rank) > 0);
      if (above >= 0) at = above;
    } else if (side === "first") {
      at = 0;
    } else if (side !== "last") {
      const sibling = elements.findIndex((each) => alike(identityOf(each, by), beside));
      if (sibling >= 0) at = side === "before" ? sibling : sibling + 1;
    }
    elements.splice(at, 0, adopted(value));
    here.journal.note(() => elements.splice(at, 1), elements);
  },

  pull(operation, path, here) {
    const identity = evaluate(operation["value"], here);
    if (identity === undefined) return;
    const elements = listAt(path, here, false);
    if (elements !== null) takeOut(here, elements, identity, operation["by"]);
  },
};

/** The list at a path; null where there is none and none is made. */
function listAt(path: unknown[], here: Context, make: boolean): Json[] | null {
  const steps = pathOf(path, here);
  const holder = make ? holderOf(here, steps) : inside(here.root, steps.slice(0, -1));
  const key = steps.at(-1) as string;
  if (!isPlain(holder) || !has(holder, key)) {
    if (!make) return null;
    setKey(here.journal, holder as JsonObject, key, []);
  }
  const elements = (holder as JsonObject)[key];
  if (!Array.isArray(elements)) throw new DeclaredFailure("there is a value that is not a list");
  return elements;
}

const identityOf = (element: Json, by: string | null | undefined): Json | undefined =>
  by === undefined || by === null ? element : inside(element, [by]);

function takeOut(here: Context, elements: Json[], identity: Json, by: string | undefined): void {
  for (let at = elements.length - 1; at >= 0; at -= 1) {
    const element = elements[at] as Json;
    if (!alike(identityOf(element, by), identity)) continue;
    elements.splice(at, 1);
    here.journal.note(() => elements.splice(at, 0, element), elements);
  }
}
