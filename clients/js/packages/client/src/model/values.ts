/** JSON as states hold it: objects without a prototype, so that no key of an event means anything to JavaScript. */

import type { Json, JsonObject } from "../wire.js";

/** An object without a prototype: `__proto__` and `constructor` are keys like any other. */
export function bare<T = Json>(): { [key: string]: T } {
  return Object.create(null) as { [key: string]: T };
}

export const isPlain = (value: unknown): value is JsonObject => {
  if (typeof value !== "object" || value === null) return false;
  const prototype = Object.getPrototypeOf(value) as unknown;
  return prototype === null || prototype === Object.prototype;
};

/** Whether an object has a key of its own. */
export const has = (value: object, key: string): boolean => Object.hasOwn(value, key);

/** What an object has under a key of its own. */
export const own = <T>(value: { [key: string]: T }, key: string): T | undefined =>
  has(value, key) ? value[key] : undefined;

/** A shallow copy without a prototype, and without one key. */
export function copied<T>(value: { [key: string]: T }, without?: string): { [key: string]: T } {
  const copy = bare<T>();
  for (const key of Object.keys(value)) if (key !== without) copy[key] = value[key] as T;
  return copy;
}

/** A deep copy in objects without a prototype. */
export function adopted(value: Json): Json {
  if (Array.isArray(value)) return value.map(adopted);
  if (!isPlain(value)) return value;
  const copy = bare();
  for (const key of Object.keys(value)) copy[key] = adopted(value[key] as Json);
  return copy;
}

/** A deep copy in ordinary objects and arrays, for programs. */
export function plain(value: unknown, other?: (value: object) => Json): Json {
  if (typeof value !== "object" || value === null) return value as Json;
  if (Array.isArray(value)) return value.map((each) => plain(each, other));
  if (!isPlain(value)) return other ? other(value) : null;
  const copy: JsonObject = {};
  for (const key of Object.keys(value)) {
    const part = plain((value as JsonObject)[key], other);
    if (key === "__proto__") {
      Object.defineProperty(copy, key, { value: part, enumerable: true, writable: true, configurable: true });
    } else {
      copy[key] = part;
    }
  }
  return copy;
}

/** Whether two JSON values are the same, whatever the order of keys. */
export function same(a: Json | undefined, b: Json | undefined): boolean {
  if (a === b) return true;
  if (Array.isArray(a)) {
    return Array.isArray(b) && a.length === b.length && a.every((each, index) => same(each, b[index]));
  }
  if (!isPlain(a) || !isPlain(b)) return false;
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => has(b, key) && same(a[key], b[key]));
}

/** At most so many characters, the last of them an ellipsis where some are left out. */
export function shorten(text: string, charsMax: number): string {
  if (text.length <= charsMax) return text;
  const chars = [...text];
  return chars.length <= charsMax ? text : `${chars.slice(0, charsMax - 1).join("")}…`;
}
