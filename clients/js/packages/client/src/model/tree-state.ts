/** The state of one partition under the tree actions: one JSON object, with its trees indexed.
 *
 * In memory the state is plain JSON but for one thing: where an object is a tree, a Forest stands in the place of its
 * `tree` array. An object is a tree when it is reached from the root through object keys alone, is not the root itself,
 * and holds `items` as an object and `tree` as an array. Arrays are opaque: nothing addresses into them.
 */

import { byCodePoints } from "../partitions.js";
import type { Json, JsonObject } from "../wire.js";
import { checkItems, Forest, Malformed } from "./forest.js";
import { Journal } from "./journal.js";
import type { ModelState } from "./model.js";
import { adopted, bare, isPlain, own, plain } from "./values.js";

export type Value = Json | Forest | Obj;
export type Obj = { [key: string]: Value };

/** Parts of a whole state that are looked at one by one; which of several faults is named depends on it. */
const OPENED_AT_ONCE_MAX = 100;

export const isObj = (value: Value | undefined): value is Obj => isPlain(value);

export const isTree = (value: Obj): boolean => own(value, "tree") instanceof Forest;

export class TreeState implements ModelState {
  readonly #journal = new Journal();
  root: Obj;

  constructor(value: JsonObject = {}) {
    this.root = adoptRoot(value);
  }

  mark(): number {
    return this.#journal.mark();
  }

  rollback(mark: number): void {
    this.#journal.rollback(mark);
  }

  settle(): void {
    this.#journal.settle();
  }

  dump(): Json {
    return plain(this.root, (forest) => (forest as Forest).plain());
  }

  /** The objects along a path, the root first, up to where it ends, is missing, or is no object. */
  trail(path: readonly string[]): Obj[] {
    let here = this.root;
    const objects = [here];
    for (const key of path) {
      const next = own(here, key);
      if (!isObj(next)) break;
      objects.push((here = next));
    }
    return objects;
  }

  /** Replace everything. */
  restart(value: Obj): void {
    const before = this.root;
    this.root = value;
    this.#journal.note(() => {
      this.root = before;
    });
  }

  /** Set each key of an object of this state; what is a tree afterwards is indexed already. */
  merge(holder: Obj, changes: Obj): void {
    const keys = Object.keys(changes);
    const replaced = keys.map((key) => own(holder, key));
    for (const key of keys) holder[key] = changes[key] as Value;
    this.#journal.note(() => {
      keys.forEach((key, index) => {
        const before = replaced[index];
        if (before === undefined) delete holder[key];
        else holder[key] = before;
      });
    });
  }

  /** Remove one key of an object of this state. */
  drop(holder: Obj, key: string): void {
    const value = holder[key] as Value;
    delete holder[key];
    this.#journal.note(() => {
      holder[key] = value;
    });
  }

  /** Add an item to a tree. */
  plant(tree: Obj, id: string, data: Value, parent: string, before: string | null): void {
    const [items, forest] = treeParts(tree);
    items[id] = data;
    forest.add(id);
    forest.place(id, parent, before);
    this.#journal.note(() => {
      forest.lift(id);
      forest.nodes.delete(id);
      delete items[id];
    });
  }

  /** Remove an item and all below it from a tree. */
  prune(tree: Obj, top: string): void {
    const [items, forest] = treeParts(tree);
    const gone = [...forest.within(top)].map((id) => [id, forest.node(id), items[id] as Value] as const);
    const place = forest.lift(top);
    for (const [id] of gone) {
      forest.nodes.delete(id);
      delete items[id];
    }
    this.#journal.note(() => {
      for (const [id, node, data] of gone) {
        forest.nodes.set(id, node);
        items[id] = data;
      }
      forest.place(top, ...place);
    });
  }

  /** Move an item and all below it within its tree. */
  move(tree: Obj, id: string, parent: string, before: string | null): void {
    const [, forest] = treeParts(tree);
    const place = forest.lift(id);
    forest.place(id, parent, before);
    this.#journal.note(() => {
      forest.lift(id);
      forest.place(id, ...place);
    });
  }
}

/** The items and the order of a tree. */
export const treeParts = (tree: Obj): [Obj, Forest] => [tree["items"] as Obj, tree["tree"] as Forest];

/** A whole state from plain JSON; throws Malformed. */
export function adoptRoot(value: JsonObject): Obj {
  const keys = Object.keys(value);
  if (keys.length > OPENED_AT_ONCE_MAX) return indexed(value, [], true);
  const root = bare<Value>();
  for (const key of keys.sort(byCodePoints)) root[key] = adopt(value[key] as Json, [key]);
  return root;
}

/** A copy of plain JSON, its trees checked and indexed; throws Malformed. */
export function adopt(value: Json, path: readonly string[] = []): Value {
  return isPlain(value) ? indexed(value, path, false) : adopted(value);
}

/** Which of several faults is named depends on the order in which objects are looked at: that of the server. */
function indexed(value: JsonObject, path: readonly string[], root: boolean): Obj {
  const top = bare<Value>();
  const work: [JsonObject, Obj, readonly string[]][] = [[value, top, path]];
  for (let next = work.pop(); next; next = work.pop()) {
    const [source, copy, here] = next;
    const inner: string[] = [];
    for (const key of Object.keys(source)) {
      const part = source[key] as Json;
      if (isPlain(part)) {
        copy[key] = bare<Value>();
        if (Object.keys(part).length) inner.push(key);
      } else {
        copy[key] = adopted(part);
      }
    }
    const tree = own(source, "tree");
    const items = own(source, "items");
    if (Array.isArray(tree) && isPlain(items) && (source !== value || !root)) {
      try {
        const forest = Forest.grow(tree, items);
        checkItems(items, forest);
        copy["tree"] = forest;
      } catch (fault) {
        if (!(fault instanceof Malformed)) throw fault;
        throw new Malformed([...here, ...fault.path], fault.message, fault.ofKey);
      }
    }
    for (const key of inner.sort(byCodePoints)) {
      work.push([source[key] as JsonObject, copy[key] as Obj, [...here, key]]);
    }
  }
  return top;
}

