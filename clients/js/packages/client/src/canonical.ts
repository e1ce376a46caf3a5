/** Canonical JSON (RFC 8785), in which events are stored and sent; JavaScript's numbers are those of the RFC. */

import { DEPTH_MAX } from "./limits.js";
import type { Json } from "./wire.js";

/** A value that JSON cannot carry; `field` is the dot path to it. */
export class NotCanonical extends Error {
  readonly field: string;

  constructor(field: string, message: string) {
    super(message);
    this.field = field;
  }
}

/** The canonical text of a value; NotCanonical when it has none. */
export function canonical(value: unknown, depthMax: number = DEPTH_MAX): string {
  return write(value, "", depthMax);
}

function write(value: unknown, path: string, depth: number): string {
  switch (typeof value) {
    case "string":
      if (!isWellFormed(value)) throw new NotCanonical(path, "a lone surrogate is not text");
      return JSON.stringify(value);
    case "number":
      if (!Number.isFinite(value)) throw new NotCanonical(path, `${value} is not a JSON number`);
      return JSON.stringify(value);
    case "boolean":
      return String(value);
    case "object":
      break;
    default:
      throw new NotCanonical(path, `${typeof value} is not JSON`);
  }
  if (value === null) return "null";
  if (depth === 0) throw new NotCanonical("", "is nested too deeply");
  const below = (key: string | number) => (path ? `${path}.${key}` : String(key));
  if (Array.isArray(value)) {
    return `[${value.map((each, index) => write(each, below(index), depth - 1)).join(",")}]`;
  }
  const prototype = Object.getPrototypeOf(value);
  if (prototype !== null && Object.getPrototypeOf(prototype) !== null) {
    throw new NotCanonical(path, `a ${prototype.constructor?.name ?? "class"} is not a JSON object`);
  }
  const entries = Object.keys(value)
    .filter((key) => (value as Record<string, unknown>)[key] !== undefined)
    .sort()
    .map((key) => `${write(key, below(key), 0)}:${write((value as Record<string, Json>)[key], below(key), depth - 1)}`);
  return `{${entries.join(",")}}`;
}

/** Whether a text has no half of a surrogate pair by itself. */
export function isWellFormed(text: string): boolean {
  try {
    encodeURIComponent(text);
    return true;
  } catch {
    return false;
  }
}
