/** The tree actions that take a tree action back, made from the state before it; equal to the Python client's.
 *
 * A compensating action restores what the action changed, and nothing else where one action can. Its places say what it
 * overwrites, so that somebody can look whether others have changed that since.
 */

import type { Json, JsonObject } from "../wire.js";
import { Forest, ROOT } from "./forest.js";
import type { ModelState } from "./model.js";
import { readAction, type Action } from "./tree-actions.js";
import { isTree, treeParts, type Obj, type TreeState, type Value } from "./tree-state.js";
import { compensation, fingerprintOf, type Fingerprint, type UndoRules } from "./undo-rules.js";
import { bare, has, isPlain, own, plain } from "./values.js";

/** Compensating actions of one event: a deleted branch of more items is not taken back. */
const ACTIONS_MAX = 100;

type Path = readonly string[];

/** What lies at a path ([] is everything); the data of an item, or some keys of it (null is all of it, and the ids of its
 * children); where an item stands: its parent and its neighbours. */
export type TreePlace =
  | { readonly at: Path }
  | { readonly target: Path; readonly id: string; readonly keys: Path | null }
  | { readonly target: Path; readonly stands: string };

/** The actions that take an action back, in order, and what they overwrite. */
interface Inverse {
  readonly events: JsonObject[];
  readonly places: TreePlace[];
}

const NOTHING: Inverse = { events: [], places: [] };

const asPlain = (value: Value): Json => plain(value, (forest) => (forest as Forest).plain());
const isTreeKey = (key: string | undefined): boolean => key === "items" || key === "tree";

function raw(state: TreeState, path: Path): Value | undefined {
  let value: Value | undefined = state.root;
  for (const key of path) {
    if (!isPlain(value)) return undefined;
    value = own(value as Obj, key);
  }
  return value;
}

function treeAt(state: TreeState, target: Path): [Obj, Forest] | null {
  const value = raw(state, target);
  return target.length && isPlain(value) && isTree(value as Obj) ? treeParts(value as Obj) : null;
}

/** The shortest part of a path where nothing is. */
function firstMissing(state: TreeState, target: Path): Path | null {
  for (let length = 1; length <= target.length; length += 1) {
    if (raw(state, target.slice(0, length)) === undefined) return target.slice(0, length);
  }
  return null;
}

function childrenOf(forest: Forest, id: string): string[] {
  const found: string[] = [];
  for (let child = forest.node(id).first; child !== null; child = forest.node(child).after) found.push(child);
  return found;
}

/** The options that put an item where it stands now. */
function standing(forest: Forest, id: string): JsonObject {
  const { parent, before } = forest.node(id);
  return { parent: parent ?? ROOT, position: before === null ? "first" : { after: before } };
}

const act = (type: string, payload: JsonObject): JsonObject => ({ type, payload });

const on = (type: string, target: Path, options: JsonObject, value?: JsonObject): JsonObject =>
  act(type, { target: target.join("."), options, ...(value && { value }) });

/** Set a value as it is now. What made a tree of an object is taken back with the object, which is then none. */
function putBack(state: TreeState, target: Path): Inverse {
  let at = target;
  while (at.length > 1 && isTreeKey(at.at(-1))) at = at.slice(0, -1);
  const value = asPlain(raw(state, at) as Value);
  return { events: [act("set", { target: at.join("."), value, options: { replace: true } })], places: [{ at }] };
}

/** Unset what is missing now. */
function takeAway(state: TreeState, at: Path): Inverse {
  if (at.length > 1 && isTreeKey(at.at(-1))) return putBack(state, at);
  return { events: [act("unset", { target: at.join(".") })], places: [{ at }] };
}

/** Some keys of an object. */
function picked(from: JsonObject, keys: Path): JsonObject {
  const made = bare();
  for (const key of keys) made[key] = from[key] as Json;
  return plain(made) as JsonObject;
}

function inverse(state: TreeState, action: Action): Inverse | null {
  switch (action.kind) {
    case "init":
      return { events: [act("init", { value: state.dump() })], places: [{ at: [] }] };
    case "unset":
      return raw(state, action.target) === undefined ? NOTHING : putBack(state, action.target);
    case "set":
      return undoSet(state, action);
    case "treePush":
      return undoPush(state, action);
    case "treeDelete":
      return undoDelete(state, action);
    case "treeUpdate":
      return undoUpdate(state, action);
    case "treeMove": {
      const { target, id } = action;
      const forest = treeAt(state, target)?.[1];
      if (!forest?.has(id)) return null;
      return { events: [on("treeMove", target, { id, ...standing(forest, id) })], places: [{ target, stands: id }] };
    }
  }
}

function undoSet(state: TreeState, action: Extract<Action, { kind: "set" }>): Inverse {
  const { target, value, replace } = action;
  const missing = firstMissing(state, target);
  if (missing) return takeAway(state, missing);
  const old = raw(state, target) as Value;
  if (replace || !isPlain(value) || !isPlain(old)) return putBack(state, target);
  const keys = Object.keys(value);
  if (!keys.length) return NOTHING;
  if (keys.some(isTreeKey)) return putBack(state, target);
  if (keys.every((key) => has(old, key))) {
    const back = picked(asPlain(old) as JsonObject, keys);
    return {
      events: [act("set", { target: target.join("."), value: back })],
      places: keys.map((key) => ({ at: [...target, key] })),
    };
  }
  const key = keys[0] as string;
  return keys.length === 1 && key && !key.includes(".") ? takeAway(state, [...target, key]) : putBack(state, target);
}

function undoPush(state: TreeState, action: Extract<Action, { kind: "treePush" }>): Inverse {
  const { target, id } = action;
  if (treeAt(state, target)) {
    return { events: [on("treeDelete", target, { id })], places: [{ target, id, keys: null }] };
  }
  const missing = firstMissing(state, target);
  return missing ? takeAway(state, missing) : putBack(state, target);
}

/** Push every item of the branch again, parents first. */
function undoDelete(state: TreeState, action: Extract<Action, { kind: "treeDelete" }>): Inverse | null {
  const { target, id: top } = action;
  const [items, forest] = treeAt(state, target) ?? [];
  if (!items || !forest?.has(top)) return null;
  const events: JsonObject[] = [];
  const waiting: [string, JsonObject][] = [[top, standing(forest, top)]];
  for (let next = waiting.pop(); next; next = waiting.pop()) {
    const [id, options] = next;
    if (events.length === ACTIONS_MAX) return null;
    const value = { id, ...(asPlain(items[id] as Value) as JsonObject) };
    events.push(act("treePush", { target: target.join("."), value, options }));
    for (const child of childrenOf(forest, id).reverse()) waiting.push([child, { parent: id, position: "last" }]);
  }
  return { events, places: [{ target, id: top, keys: null }] };
}

function undoUpdate(state: TreeState, action: Extract<Action, { kind: "treeUpdate" }>): Inverse | null {
  const { target, id, data, replace } = action;
  const items = treeAt(state, target)?.[0];
  if (!items || !has(items, id)) return null;
  const old = asPlain(items[id] as Value) as JsonObject;
  const keys = Object.keys(data);
  // An item that became a tree is put back whole.
  if (!replace && !keys.some(isTreeKey) && keys.every((key) => has(old, key))) {
    if (!keys.length) return NOTHING;
    return { events: [on("treeUpdate", target, { id }, picked(old, keys))], places: [{ target, id, keys }] };
  }
  return { events: [on("treeUpdate", target, { id, replace: true }, old)], places: [{ target, id, keys: [] }] };
}

/** What is there as plain JSON; undefined when nothing is. */
function readPlace(state: TreeState, place: TreePlace): Json | undefined {
  if ("at" in place) {
    const value = raw(state, place.at);
    return value === undefined ? undefined : asPlain(value);
  }
  const [items, forest] = treeAt(state, place.target) ?? [];
  const id = "stands" in place ? place.stands : place.id;
  if (!items || !forest?.has(id)) return undefined;
  if ("stands" in place) {
    const { parent, before, after } = forest.node(id);
    return [parent, before, after];
  }
  const data = asPlain(items[id] as Value) as JsonObject;
  if (place.keys === null) return [data, childrenOf(forest, id)];
  return place.keys.length ? picked(data, place.keys.filter((key) => has(data, key))) : data;
}

export const treeUndoRules: UndoRules<TreePlace> = {
  watch(state, event, change) {
    const action = readAction(event);
    const back = Array.isArray(action) ? null : inverse(state as TreeState, action);
    if (!change()) return [false, null];
    return [true, back && compensation(treeUndoRules, state, back.events, back.places)];
  },

  fingerprint(state: ModelState, place: TreePlace): Fingerprint {
    const value = readPlace(state as TreeState, place);
    if (value === undefined) return null;
    return "stands" in place ? (value as (string | null)[]) : fingerprintOf(value);
  },

  /** A push or move whose neighbour is gone goes to the end. */
  fitted(state, event) {
    const action = readAction(event);
    if (Array.isArray(action) || (action.kind !== "treePush" && action.kind !== "treeMove")) return event;
    const { target, parent, position } = action;
    const forest = treeAt(state as TreeState, target)?.[1];
    if (position.side !== "after" || !forest?.nodes.has(parent)) return event;
    if (forest.nodes.get(position.sibling)?.parent === parent) return event;
    const payload = event["payload"] as { options: JsonObject };
    return { ...event, payload: { ...payload, options: { ...payload.options, position: "last" } } };
  },
};
