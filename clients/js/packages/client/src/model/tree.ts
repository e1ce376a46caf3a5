/** The compatibility profile: tree actions under the policy `strict`, equal to the server's (TREE-11).
 *
 * The rules for writes around trees: after a write, every tree is well formed; and a tree is replaced or removed
 * whole, or it stays a tree.
 */

import type { FieldError, Json, JsonObject } from "../wire.js";
import { checkItem, checkItems, Forest, Malformed, quoted, ROOT } from "./forest.js";
import { EVENT_TYPE, type Model } from "./model.js";
import { readAction, type Action, type Position } from "./tree-actions.js";
import { Tree } from "./tree-shorthands.js";
import { adopt, adoptRoot, isObj, isTree, treeParts, TreeState, type Obj, type Value } from "./tree-state.js";
import { byCodePoints } from "../partitions.js";
import { bare, copied, has, isPlain, own, shorten } from "./values.js";

const TARGET = "event.payload.target";
const OPTIONS = "event.payload.options";

type ItemAction = Extract<Action, { kind: "treeDelete" | "treeUpdate" | "treeMove" }>;

/** What an object is to the tree around it: the `items` of one, the data of an item, or neither. */
type Role = "root" | "items" | "item" | "other";

/** A write as keys merged into one object of the state.
 *
 * `path` leads from `changes` to the value the event carries; its keys come from the event's target.
 */
interface MergedWrite {
  readonly holder: Obj;
  readonly role: Role;
  readonly changes: JsonObject;
  readonly path: readonly string[];
  readonly value: Json;
}

/** Tree actions, which mean the same on every server. */
export function treeModel(): Model<TreeState> {
  return {
    profile: "compatibility",
    half: "tree",
    name: "tree",
    version: null,
    digest: null,
    tree: (submit, target) => new Tree(submit, target),
    empty: () => new TreeState(),
    load(dumped) {
      if (!isPlain(dumped)) throw new Malformed([], "a tree state is a JSON object");
      return new TreeState(dumped);
    },
    shape(event) {
      const action = readAction(event);
      return Array.isArray(action) ? action : [];
    },
    refusals: (state, event) => refusals(state, readAction(event) as Action),
    apply: (state, event) => applyAction(state, readAction(event) as Action),
    replay(state, event) {
      const action = own(event, "type") === EVENT_TYPE ? [] : readAction(event);
      if (Array.isArray(action) || refusals(state, action).length) return false;
      applyAction(state, action);
      return true;
    },
  };
}

const fault = (field: string, message: string): FieldError[] => [{ field, message }];

const named = (target: readonly string[]): string => quoted(target.join("."));

function refusals(state: TreeState, action: Action): FieldError[] {
  switch (action.kind) {
    case "set":
      return refuseWrite(setWrite(state, action), action.target);
    case "unset":
      return refuseUnset(state, action.target);
    case "init":
      return attempt(() => adoptRoot(action.value), 0);
    case "treePush":
      return refusePush(state, action);
    default: {
      const tree = treeAt(state, action.target);
      return tree === null
        ? fault(TARGET, `there is no tree at ${named(action.target)}`)
        : refuseExisting(tree, action);
    }
  }
}

function applyAction(state: TreeState, action: Action): void {
  switch (action.kind) {
    case "set":
      write(state, setWrite(state, action) as MergedWrite);
      break;
    case "unset": {
      const holder = holderOf(state, action.target);
      if (holder !== null) state.drop(holder, action.target.at(-1) as string);
      break;
    }
    case "init":
      state.restart(adoptRoot(action.value));
      break;
    case "treePush": {
      const tree = treeAt(state, action.target);
      if (tree === null) {
        write(state, firstPush(state, action) as MergedWrite);
      } else {
        const before = siblingBefore(treeParts(tree)[1], action.parent, action.position);
        state.plant(tree, action.id, adopt(action.data), action.parent, before);
      }
      break;
    }
    case "treeDelete":
      state.prune(treeAt(state, action.target) as Obj, action.id);
      break;
    case "treeUpdate":
      write(state, updateWrite(treeAt(state, action.target) as Obj, action));
      break;
    case "treeMove": {
      const tree = treeAt(state, action.target) as Obj;
      const forest = treeParts(tree)[1];
      let before = siblingBefore(forest, action.parent, action.position);
      if (before === action.id) before = forest.node(action.id).after;
      state.move(tree, action.id, action.parent, before);
    }
  }
}

function treeAt(state: TreeState, target: readonly string[]): Obj | null {
  const objects = state.trail(target);
  const last = objects.at(-1) as Obj;
  return objects.length > target.length && isTree(last) ? last : null;
}

/** The object an `unset` takes a key from; null when there is nothing to take. */
function holderOf(state: TreeState, target: readonly string[]): Obj | null {
  const objects = state.trail(target.slice(0, -1));
  const last = objects.at(-1) as Obj;
  return objects.length === target.length && has(last, target.at(-1) as string) ? last : null;
}

/** The sibling a position stands before; null for the end. */
function siblingBefore(forest: Forest, parent: string, { side, sibling }: Position): string | null {
  if (side === "first") return forest.node(parent).first;
  if (side === "last") return null;
  return side === "after" ? forest.node(sibling).after : sibling;
}

// -- writes ---------------------------------------------------------------------------------------------------

const setWrite = (state: TreeState, action: Extract<Action, { kind: "set" }>) =>
  landing(state, action.target, action.value, !action.replace, [], action.value);

function updateWrite(tree: Obj, action: Extract<Action, { kind: "treeUpdate" }>): MergedWrite {
  const items = treeParts(tree)[0];
  const { id, data } = action;
  return action.replace
    ? { holder: items, role: "items", changes: one(id, data), path: [id], value: data }
    : { holder: items[id] as Obj, role: "item", changes: data, path: [], value: data };
}

/** The push that makes a tree of its target, as the write of a tree of one item (TREE-13). */
function firstPush(state: TreeState, action: Extract<Action, { kind: "treePush" }>): MergedWrite | null {
  const { id, data } = action;
  const tree = { items: one(id, data), tree: [{ id, children: [] }] };
  return landing(state, action.target, tree, true, ["items", id], data);
}

const one = (key: string, value: Json): JsonObject => {
  const made = bare();
  made[key] = value;
  return made;
};

/** Where `placed` lands at `target`, missing segments becoming objects; null if a non-object is in the way.
 *
 * With `merge`, an object is merged into an object that is there. `path` leads from `placed` to what the event
 * carries, `value`.
 */
function landing(
  state: TreeState,
  target: readonly string[],
  placed: Json,
  merge: boolean,
  path: readonly string[],
  value: Json,
): MergedWrite | null {
  const objects = state.trail(target);
  let at = objects.length - 1;
  if (at === target.length) {
    if (merge && isPlain(placed)) {
      return { holder: objects[at] as Obj, role: roleOf(objects, target), changes: placed, path, value };
    }
    at -= 1;
  } else if (at < target.length - 1 && has(objects[at] as Obj, target[at] as string)) {
    return null;
  }
  let changes = placed;
  for (const key of target.slice(at).reverse()) changes = one(key, changes);
  const holders = objects.slice(0, at + 1);
  return {
    holder: holders[at] as Obj,
    role: roleOf(holders, target),
    changes: changes as JsonObject,
    path: [...target.slice(at), ...path],
    value,
  };
}

/** The role of the last of the objects along a path. */
function roleOf(objects: readonly Obj[], path: readonly string[]): Role {
  const at = objects.length - 1;
  if (at === 0) return "root";
  if (path[at - 1] === "items" && isTree(objects[at - 1] as Obj)) return "items";
  if (at >= 2 && path[at - 2] === "items" && isTree(objects[at - 2] as Obj)) return "item";
  return "other";
}

/** The changes as the state will hold them; throws Malformed. */
function adoptChanges(merged: MergedWrite): Obj {
  let value: Value = adopt(merged.value);
  const above: JsonObject[] = [merged.changes];
  for (const key of merged.path.slice(0, -1)) above.push((above.at(-1) as JsonObject)[key] as JsonObject);
  for (let at = merged.path.length - 1; at >= 0; at -= 1) {
    const holder = above[at] as JsonObject;
    const key = merged.path[at] as string;
    const made = copied<Value>(holder);
    made[key] = value;
    const tree = own(holder, "tree");
    if (key === "items" && Array.isArray(tree)) made["tree"] = Forest.grow(tree, made["items"] as Obj);
    value = made;
  }
  const made = value as Obj;
  const items = has(made, "items") ? made["items"] : own(merged.holder, "items");
  const tree = has(made, "tree") ? made["tree"] : own(merged.holder, "tree");
  if (merged.role !== "root" && isObj(items) && Array.isArray(tree)) {
    made["tree"] = Forest.grow(tree as Json[], items);
  }
  return made;
}

const write = (state: TreeState, merged: MergedWrite): void => state.merge(merged.holder, adoptChanges(merged));

/** Why a write would leave something malformed, if it would. */
function refuseWrite(merged: MergedWrite | null, target: readonly string[]): FieldError[] {
  if (merged === null) return fault(TARGET, `${named(target)} leads through a value that is not an object`);
  const depth = merged.path.length;
  const wrong = attempt(() => checkRole(merged), depth);
  if (wrong.length) return wrong;
  const unfit = attempt(() => adopt(merged.value), 0);
  if (unfit.length || merged.role === "root") return unfit;
  return attempt(() => checkTree(merged), depth);
}

/** The field of the event that is to blame: its target for what the target names, its value otherwise. */
function attempt(check: () => unknown, depth: number): FieldError[] {
  try {
    check();
    return [];
  } catch (error) {
    if (!(error instanceof Malformed)) throw error;
    if (error.path.length < depth + Number(error.ofKey)) return fault(TARGET, error.message);
    const field = ["event.payload.value", ...error.path.slice(depth)].join(".");
    return fault(shorten(field, 500), error.message);
  }
}

function checkRole({ role, changes, holder }: MergedWrite): void {
  if (role === "item") checkItem(changes, []);
  if (role !== "items") return;
  for (const id of Object.keys(changes).sort(byCodePoints)) {
    if (!has(holder, id)) throw new Malformed([id], "there is no such item; treePush adds one", true);
    checkItem(changes[id], [id]);
  }
}

/** What has `items` and `tree` after the changes is a tree, and a tree stays one (TREE-10). */
function checkTree(merged: MergedWrite): void {
  const { holder } = merged;
  const touched = ["items", "tree"].filter((key) => has(merged.changes, key));
  if (!touched.length) return;
  try {
    const changes = adoptChanges(merged);
    const items = has(changes, "items") ? changes["items"] : own(holder, "items");
    const tree = has(changes, "tree") ? changes["tree"] : own(holder, "tree");
    if (isObj(items) && tree instanceof Forest) {
      checkItems(items, tree);
    } else if (isTree(holder)) {
      throw new Malformed([isObj(items) ? "tree" : "items"], "a tree keeps `items` an object and `tree` an array");
    }
  } catch (error) {
    if (!(error instanceof Malformed) || touched.includes(error.path[0] as string)) throw error;
    throw new Malformed([touched[0] as string], `does not fit the tree that is there: ${error.message}`);
  }
}

// -- refusals -------------------------------------------------------------------------------------------------

function refuseUnset(state: TreeState, target: readonly string[]): FieldError[] {
  const holder = holderOf(state, target);
  if (holder === null) return [];
  if (roleOf(state.trail(target.slice(0, -1)), target) === "items") {
    return fault(TARGET, "an item of a tree is removed by treeDelete");
  }
  if (isTree(holder) && ["items", "tree"].includes(target.at(-1) as string)) {
    return fault(TARGET, "a tree is removed whole or keeps its `items` and `tree`");
  }
  return [];
}

function refusePush(state: TreeState, action: Extract<Action, { kind: "treePush" }>): FieldError[] {
  const tree = treeAt(state, action.target);
  if (tree === null) return refuseFirstPush(state, action);
  const [items, forest] = treeParts(tree);
  return [
    ...(has(items, action.id) ? fault("event.payload.value.id", "this id is already in the tree") : []),
    ...refusePlace(forest, action.parent, action.position),
    ...attempt(() => adopt(action.data), 0),
  ];
}

function refuseFirstPush(state: TreeState, action: Extract<Action, { kind: "treePush" }>): FieldError[] {
  const { target } = action;
  const objects = state.trail(target);
  const last = objects.at(-1) as Obj;
  if (objects.length > target.length) {
    if (has(last, "items") || has(last, "tree")) {
      return fault(TARGET, `${named(target)} holds \`items\` or \`tree\` and is not a tree`);
    }
  } else if (has(last, target[objects.length - 1] as string)) {
    return fault(TARGET, `${named(target)} is, or leads through, a value that is not an object`);
  }
  const errors = refusePlace(new Forest(), action.parent, action.position);
  return errors.length ? errors : refuseWrite(firstPush(state, action), target);
}

/** Refusals of an action on an item that must be there. */
function refuseExisting(tree: Obj, action: ItemAction): FieldError[] {
  const [items, forest] = treeParts(tree);
  const known = has(items, action.id);
  const errors = known ? [] : fault(`${OPTIONS}.id`, "there is no item of this id");
  if (action.kind === "treeMove") {
    errors.push(...refusePlace(forest, action.parent, action.position, known ? action.id : undefined));
  } else if (action.kind === "treeUpdate" && known) {
    errors.push(...refuseWrite(updateWrite(tree, action), action.target));
  }
  return errors;
}

function refusePlace(forest: Forest, parent: string, position: Position, moving?: string): FieldError[] {
  if (parent !== ROOT && !forest.has(parent)) return fault(`${OPTIONS}.parent`, "there is no item of this id");
  if (moving !== undefined && forest.holds(moving, parent)) {
    return fault(`${OPTIONS}.parent`, "a node cannot be moved into itself or below itself");
  }
  const { side, sibling } = position;
  if (side !== "after" && side !== "before") return [];
  const field = `${OPTIONS}.position.${side}`;
  if (sibling === moving) return fault(field, "a node cannot be placed beside itself");
  if (!forest.has(sibling) || forest.node(sibling).parent !== parent) {
    return fault(field, "there is no such item among the children of the chosen parent");
  }
  return [];
}
