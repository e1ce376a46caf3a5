/** The seven tree actions as they come in: the shape of each payload, read once into a typed action.
 *
 * Keys it does not know are the application's and are let be. `null` means the default where there is one: for
 * `options` as a whole, and in it for `replace`, `parent` and `position`.
 */

import type { FieldError, Json, JsonObject } from "../wire.js";
import { ROOT } from "./forest.js";
import { bare, copied, isPlain, own } from "./values.js";

export const ACTIONS = ["set", "unset", "init", "treePush", "treeDelete", "treeUpdate", "treeMove"] as const;

/** As deep as a message may nest (LIM-06). */
const TARGET_SEGMENTS_MAX = 64;

/** A place among siblings; `sibling` is named for `after` and `before` only. */
export interface Position {
  readonly side: "first" | "last" | "after" | "before";
  readonly sibling: string;
}

export type Action =
  | { kind: "set"; target: string[]; value: Json; replace: boolean }
  | { kind: "unset"; target: string[] }
  | { kind: "init"; value: JsonObject }
  | { kind: "treePush"; target: string[]; id: string; data: JsonObject; parent: string; position: Position }
  | { kind: "treeDelete"; target: string[]; id: string }
  | { kind: "treeUpdate"; target: string[]; id: string; data: JsonObject; replace: boolean }
  | { kind: "treeMove"; target: string[]; id: string; parent: string; position: Position };

/** The action an event asks for, or everything wrong with its shape, in a fixed order. */
export function readAction(event: JsonObject): Action | FieldError[] {
  const kind = own(event, "type");
  if (!(ACTIONS as readonly unknown[]).includes(kind)) {
    return [{ field: "event.type", message: `must be one of ${ACTIONS.join(", ")}` }];
  }
  const payload = own(event, "payload");
  if (!isPlain(payload)) return [{ field: "event.payload", message: "must be an object" }];
  const reader = new Reader(payload);
  const action = read(kind as Action["kind"], reader);
  return reader.errors.length ? reader.errors : action;
}

function read(kind: Action["kind"], reader: Reader): Action {
  switch (kind) {
    case "set": {
      const action = { kind, target: reader.target(), value: reader.value(), replace: reader.replace() };
      if (Array.isArray(action.value) && !action.replace) {
        reader.wrong("value", "an array is set only with options.replace true");
      }
      return action;
    }
    case "unset":
      return { kind, target: reader.target() };
    case "init":
      return { kind, value: withoutOwnIds(reader.objectValue()) };
    case "treePush": {
      const target = reader.target();
      const known = reader.errors.length;
      const value = reader.objectValue();
      const id = reader.errors.length > known ? "" : reader.itemId(own(value, "id"), "value.id");
      return { kind, target, id, data: copied(value, "id"), parent: reader.parent(), position: reader.position() };
    }
    case "treeDelete":
      return { kind, target: reader.target(), id: reader.optionId() };
    case "treeUpdate": {
      const target = reader.target();
      const value = reader.objectValue();
      return { kind, target, id: reader.optionId(), data: copied(value, "id"), replace: reader.replace() };
    }
    case "treeMove":
      return {
        kind,
        target: reader.target(),
        id: reader.optionId(),
        parent: reader.parent(),
        position: reader.position(),
      };
  }
}

/** The segments of a dot path, or what is wrong with it. */
function splitTarget(target: Json | undefined): string[] | string {
  if (typeof target !== "string" || !target) {
    return "must be a non-empty dot path such as `explorer` or `settings.theme`";
  }
  const segments = target.split(".");
  if (segments.length > TARGET_SEGMENTS_MAX) return `must have at most ${TARGET_SEGMENTS_MAX} segments`;
  if (segments.includes("")) return "must have no empty segment: no dot at either end, no two dots together";
  return segments;
}

/** Takes fields out of one payload and keeps what is wrong with them. */
class Reader {
  readonly errors: FieldError[] = [];
  #given: JsonObject | null = null;

  constructor(readonly payload: JsonObject) {}

  wrong(field: string, message: string): void {
    this.errors.push({ field: `event.payload.${field}`, message });
  }

  target(): string[] {
    const segments = splitTarget(own(this.payload, "target"));
    if (typeof segments !== "string") return segments;
    this.wrong("target", segments);
    return [];
  }

  value(): Json {
    const value = own(this.payload, "value");
    if (value === undefined) this.wrong("value", "is missing");
    return value ?? null;
  }

  objectValue(): JsonObject {
    const value = own(this.payload, "value");
    if (isPlain(value)) return value;
    this.wrong("value", "must be an object");
    return {};
  }

  options(): JsonObject {
    if (this.#given === null) {
      const given = own(this.payload, "options") ?? null;
      if (given !== null && !isPlain(given)) this.wrong("options", "must be an object");
      this.#given = isPlain(given) ? given : {};
    }
    return this.#given;
  }

  option(name: string, otherwise: Json): Json {
    return own(this.options(), name) ?? otherwise;
  }

  itemId(id: Json | undefined, field: string): string {
    if (typeof id !== "string" || !id) this.wrong(field, "must be a non-empty string");
    else if (id === ROOT) this.wrong(field, `"${ROOT}" is the place above all items, not an item id`);
    return typeof id === "string" ? id : "";
  }

  optionId(): string {
    const known = this.errors.length;
    const options = this.options();
    return this.errors.length > known ? "" : this.itemId(own(options, "id"), "options.id");
  }

  replace(): boolean {
    const replace = this.option("replace", false);
    if (typeof replace !== "boolean") this.wrong("options.replace", "must be true or false");
    return replace === true;
  }

  parent(): string {
    const parent = this.option("parent", ROOT);
    if (typeof parent === "string" && parent) return parent;
    this.wrong("options.parent", `must be an item id, or "${ROOT}"`);
    return ROOT;
  }

  position(): Position {
    const given = this.option("position", "first");
    if (given === "first" || given === "last") return { side: given, sibling: "" };
    const side = isPlain(given) && Object.keys(given).length === 1 ? Object.keys(given)[0] : "";
    if (side === "after" || side === "before") {
      return { side, sibling: this.itemId((given as JsonObject)[side], `options.position.${side}`) };
    }
    this.wrong("options.position", 'must be "first", "last", {"after": id} or {"before": id}');
    return { side: "first", sibling: "" };
  }
}

/** A state whose trees hold items that may carry their key as their `id`, without those ids (TREE-03). */
function withoutOwnIds(state: JsonObject): JsonObject {
  const top = bare();
  const work: [JsonObject, JsonObject][] = [[state, top]];
  for (let next = work.pop(); next; next = work.pop()) {
    const [source, copy] = next;
    const tree = source !== state && Array.isArray(own(source, "tree"));
    for (const key of Object.keys(source)) {
      const part = source[key] as Json;
      if (!isPlain(part)) {
        copy[key] = part;
        continue;
      }
      const child = bare();
      copy[key] = child;
      work.push([tree && key === "items" ? itemsWithoutOwnIds(part) : part, child]);
    }
  }
  return top;
}

function itemsWithoutOwnIds(items: JsonObject): JsonObject {
  const copy = bare();
  for (const id of Object.keys(items)) {
    const data = items[id] as Json;
    copy[id] = isPlain(data) && own(data, "id") === id ? copied(data, "id") : data;
  }
  return copy;
}
