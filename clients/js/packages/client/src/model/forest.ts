/** The order of a tree: ordered nodes below one root, each id once.
 *
 * Placing, lifting and looking up cost the same at any size and depth; nothing here recurses (TREE-12).
 */

import { byCodePoints } from "../partitions.js";
import type { Json, JsonObject } from "../wire.js";
import { has, isPlain, shorten } from "./values.js";

/** The name of the place above all items; never an item's own id (TREE-13). */
export const ROOT = "_root";

/** Something that claims to be a tree and is not one.
 *
 * `path` leads from the value looked at to the fault. `ofKey` says that the last key of the path is what is wrong,
 * rather than the value under it.
 */
export class Malformed extends Error {
  constructor(
    readonly path: readonly string[],
    message: string,
    readonly ofKey = false,
  ) {
    super(message);
  }
}

interface ForestNode {
  parent: string | null;
  before: string | null;
  after: string | null;
  first: string | null;
  last: string | null;
}

const newNode = (): ForestNode => ({ parent: null, before: null, after: null, first: null, last: null });

export const quoted = (id: string): string => JSON.stringify(shorten(id, 60));

export class Forest {
  readonly nodes = new Map<string, ForestNode>([[ROOT, newNode()]]);

  /** The forest that `[{id, children: […]}, …]` describes, its ids all in `items`; throws Malformed. */
  static grow(tree: readonly Json[], items: object): Forest {
    const forest = new Forest();
    const pending: [string, readonly Json[]][] = [[ROOT, tree]];
    for (let next = pending.pop(); next; next = pending.pop()) {
      const [parent, children] = next;
      for (const child of children) {
        const [id, below] = parts(child);
        if (id === ROOT) throw new Malformed(["tree"], `${quoted(ROOT)} is not an item id`);
        if (forest.nodes.has(id)) throw new Malformed(["tree"], `${quoted(id)} is in the tree twice`);
        if (!has(items, id)) throw new Malformed(["tree"], `${quoted(id)} is in the tree and not among the items`);
        forest.add(id);
        forest.place(id, parent, null);
        if (below.length) pending.push([id, below]);
      }
    }
    return forest;
  }

  get size(): number {
    return this.nodes.size - 1;
  }

  has(id: string): boolean {
    return id !== ROOT && this.nodes.has(id);
  }

  node(id: string): ForestNode {
    return this.nodes.get(id) as ForestNode;
  }

  add(id: string): void {
    this.nodes.set(id, newNode());
  }

  /** Link a free node below `parent`, just before the sibling `before`, or last. */
  place(id: string, parent: string, before: string | null): void {
    const node = this.node(id);
    const above = this.node(parent);
    node.parent = parent;
    node.after = before;
    if (before === null) {
      node.before = above.last;
      above.last = id;
    } else {
      const right = this.node(before);
      node.before = right.before;
      right.before = id;
    }
    if (node.before === null) above.first = id;
    else this.node(node.before).after = id;
  }

  /** Free a node, with all that hangs below it, and tell the place it had, as `place` takes it. */
  lift(id: string): [parent: string, before: string | null] {
    const node = this.node(id);
    const above = this.node(node.parent as string);
    if (node.before === null) above.first = node.after;
    else this.node(node.before).after = node.after;
    if (node.after === null) above.last = node.before;
    else this.node(node.after).before = node.before;
    return [node.parent as string, node.after];
  }

  /** `top` and everything below it, parents before children, siblings in order. */
  *within(top: string): Generator<string> {
    let id = top;
    for (;;) {
      yield id;
      const down = this.node(id).first;
      if (down !== null) {
        id = down;
        continue;
      }
      while (id !== top) {
        const node = this.node(id);
        if (node.after !== null) {
          id = node.after;
          break;
        }
        id = node.parent as string;
      }
      if (id === top) return;
    }
  }

  /** Whether `id` is `top` or lies below it; costs the smaller of the way up and what lies below. */
  holds(top: string, id: string): boolean {
    let climbing: string | null = id;
    for (const _ of this.within(top)) {
      if (climbing === top) return true;
      if (climbing === null) return false;
      climbing = this.node(climbing).parent;
    }
    return false;
  }

  /** The forest as `[{id, children: […]}, …]`. */
  plain(): Json[] {
    const top: Json[] = [];
    const above: Json[][] = [];
    let here = top;
    let id = this.node(ROOT).first;
    while (id !== null) {
      const children: Json[] = [];
      here.push({ id, children });
      let node = this.node(id);
      if (node.first !== null) {
        above.push(here);
        here = children;
        id = node.first;
        continue;
      }
      while (node.after === null && above.length) {
        here = above.pop() as Json[];
        node = this.node(node.parent as string);
      }
      id = node.after;
    }
    return top;
  }
}

function parts(node: Json): [string, Json[]] {
  if (!isPlain(node) || Object.keys(node).length !== 2 || !has(node, "id") || !has(node, "children")) {
    throw new Malformed(["tree"], "each node of a tree is an object of `id` and `children`, nothing else");
  }
  const { id, children } = node;
  if (typeof id !== "string" || !id) throw new Malformed(["tree"], "the `id` of a node is a non-empty string");
  if (!Array.isArray(children)) throw new Malformed(["tree"], `the \`children\` of ${quoted(id)} must be an array`);
  return [id, children];
}

/** That a tree's items are what its order names, each an object without `id`; throws Malformed. */
export function checkItems(items: object, forest: Forest): void {
  const ids = Object.keys(items);
  if (ids.length !== forest.size) {
    throw new Malformed(["items"], `there are ${ids.length} items, and the tree names ${forest.size}`);
  }
  const strange = first(ids.filter((id) => !forest.has(id)));
  if (strange !== undefined) throw new Malformed(["items", strange], "this item is not in the tree", true);
  const data = items as JsonObject;
  const wrong = first(ids.filter((id) => !isPlain(data[id]) || has(data[id], "id")));
  if (wrong !== undefined) checkItem(data[wrong], ["items", wrong]);
}

export function checkItem(data: unknown, path: readonly string[]): void {
  if (!isPlain(data)) throw new Malformed(path, "an item is an object");
  if (has(data, "id")) {
    throw new Malformed([...path, "id"], "the id of an item is its key: leave `id` out", true);
  }
}

const first = (ids: string[]): string | undefined => ids.sort(byCodePoints)[0];
