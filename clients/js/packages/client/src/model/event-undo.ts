/** How events of a model are taken back: as the `undo` of its `reducers.json` declares; equal to the Python client's. */

import type { Json, JsonObject } from "../wire.js";
import {
  contextOf,
  declaredFor,
  DeclaredFailure,
  evaluate,
  holds,
  inside,
  pathOf,
  type Context,
  type EventModel,
  type EventState,
  type Fields,
} from "./declared.js";
import { EVENT_TYPE, type Model } from "./model.js";
import { compensation, fingerprintOf, type UndoRules } from "./undo-rules.js";
import { bare, has, isPlain, own, plain } from "./values.js";

type Path = readonly string[];

export function eventUndoRules(model: Model): UndoRules<Path> {
  const rules: UndoRules<Path> = {
    watch(given, event, change) {
      const state = given as EventState;
      const events = takenBackBy((model as unknown as EventModel).reducers, state, event);
      const mark = state.journal.mark();
      if (!change()) return [false, null];
      const changes = state.journal.since(mark);
      if (!changes.length) return [true, { events: [], left: [] }];
      if (!events?.length) return [true, null];
      return [true, compensation(rules, state, events, changedPaths(state.root, changes))];
    },

    fingerprint(state, place) {
      const value = inside((state as EventState).root, place);
      return value === undefined ? null : fingerprintOf(value);
    },

    fitted: (_state, event) => event,
  };
  return rules;
}

/** The events that take this one back, from the state before it; null where the model names none. */
function takenBackBy(reducers: EventModel["reducers"], state: EventState, event: JsonObject): JsonObject[] | null {
  if (event["type"] !== EVENT_TYPE || !isPlain(event["payload"])) return null;
  const here = contextOf(state, event);
  const listed = declaredFor(reducers, here.schema)["undo"] as Fields[] | undefined;
  if (!listed) return null;
  try {
    const made: JsonObject[] = [];
    for (const each of listed) {
      if (has(each, "if") && !holds(each["if"], here)) continue;
      const data = undoData(each, here);
      if (data === undefined) return null;
      made.push({ type: EVENT_TYPE, payload: { schema: each["schema"] as string, data: plain(data) } });
    }
    return made;
  } catch (error) {
    if (error instanceof DeclaredFailure) return null;
    throw error;
  }
}

function undoData(each: Fields, here: Context): Json | undefined {
  let made = evaluate(each["data"], here);
  if (has(each, "restore") && made !== undefined) {
    made = restore(made, here.data, inside(here.root, pathOf(each["restore"], here)));
  }
  const negated = (each["negate"] ?? []) as string[];
  return negated.length && made !== undefined ? negate(made, negated) : made;
}

/** `made` with the values that the keys of `data` had before; undefined when one of them was not there. */
function restore(made: Json, data: Json, before: Json | undefined): Json | undefined {
  if (!isPlain(made) || !isPlain(data) || !isPlain(before)) return undefined;
  const keys = Object.keys(data).filter((key) => !has(made, key));
  if (keys.some((key) => !has(before, key))) return undefined;
  const restored = bare();
  for (const key of keys) restored[key] = before[key] as Json;
  for (const key of Object.keys(made)) restored[key] = made[key] as Json;
  return restored;
}

/** `made` with the sign of these fields turned; undefined when one is no number. */
function negate(made: Json, fields: readonly string[]): Json | undefined {
  if (!isPlain(made) || !fields.every((field) => typeof own(made, field) === "number")) return undefined;
  const turned = bare();
  for (const key of Object.keys(made)) turned[key] = made[key] as Json;
  for (const field of new Set(fields)) turned[field] = -(made[field] as number);
  return turned;
}

type Changed = Map<object, Set<string> | null>;

/** The paths of what these changes changed: keys of objects, and lists as a whole. */
function changedPaths(root: JsonObject, changes: readonly (readonly [unknown, object?, string?])[]): Path[] {
  const changed: Changed = new Map();
  for (const [, container, key] of changes) {
    if (!container) return [[]]; // a function of the program made another state
    const known = changed.has(container) ? changed.get(container) : new Set<string>();
    if (key === undefined) changed.set(container, null);
    else if (known) changed.set(container, known.add(key));
  }
  const paths = new Map<string, Path>();
  const note = (path: Path) => paths.set(JSON.stringify(path), path);
  const waiting: [Path, object][] = [[[], root]];
  for (let next = waiting.pop(); next; next = waiting.pop()) {
    const [path, container] = next;
    const keys = changed.get(container);
    if (keys === null || (Array.isArray(container) && anyInside(container, changed))) {
      note(path);
    } else if (!Array.isArray(container)) {
      for (const key of keys ?? []) note([...path, key]);
      for (const [key, part] of Object.entries(container)) if (isContainer(part)) waiting.push([[...path, key], part]);
    }
  }
  const isInner = (path: Path) => path.some((_, length) => length > 0 && paths.has(JSON.stringify(path.slice(0, length))));
  return [...paths.values()].filter((path) => !isInner(path)).map((path) => innermost(root, path));
}

const isContainer = (value: unknown): value is object => typeof value === "object" && value !== null;

/** Past objects that hold nothing but one object: they were made on the way to it, and others may use them. */
function innermost(root: JsonObject, path: Path): Path {
  let value = inside(root, path);
  let found = path;
  while (isPlain(value)) {
    const [key, ...more] = Object.keys(value);
    if (key === undefined || more.length || !isPlain(value[key])) break;
    found = [...found, key];
    value = value[key];
  }
  return found;
}

/** Whether something within the elements of a list changed: the list counts as a whole. */
function anyInside(elements: object, changed: Changed): boolean {
  const waiting: object[] = [elements];
  for (let next = waiting.pop(); next; next = waiting.pop()) {
    if (changed.has(next)) return true;
    waiting.push(...Object.values(next).filter(isContainer));
  }
  return false;
}
