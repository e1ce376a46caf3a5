/** Partition sets in their one form: NFC, checked, without duplicates, sorted by code points (PART-01, PART-02). */

import { isWellFormed } from "./canonical.js";
import { byteLength } from "./codec.js";
import { ENTRIES_MAX, NAME_BYTES_MAX } from "./limits.js";

/** A limit broken; `index` is the entry at fault, or null when it is the set as a whole. */
export class PartitionError extends Error {
  readonly index: number | null;

  constructor(message: string, index: number | null) {
    super(message);
    this.index = index;
  }
}

export function normalise(names: readonly string[]): string[] {
  if (!Array.isArray(names) || !names.length) throw new PartitionError("at least one partition is required", null);
  if (names.length > ENTRIES_MAX) {
    throw new PartitionError(`${names.length} partitions given, at most ${ENTRIES_MAX} allowed`, null);
  }
  return [...new Set(names.map(checked))].sort(byCodePoints);
}

/** A partition's name in its one form. */
export const partitionName = (name: string): string => checked(name, 0);

function checked(name: string, index: number): string {
  if (typeof name !== "string" || !name || !isWellFormed(name)) {
    throw new PartitionError("a partition name is a text of valid Unicode, not empty", index);
  }
  // NFC makes no text shorter than two sevenths, so that a longer one can never fit.
  const normal = byteLength(name) > 4 * NAME_BYTES_MAX ? name : name.normalize("NFC");
  const size = byteLength(normal);
  if (size > NAME_BYTES_MAX) {
    throw new PartitionError(`a partition name has ${size} bytes, at most ${NAME_BYTES_MAX} allowed`, index);
  }
  return normal;
}

/** The order of UTF-8 bytes; JavaScript's own is that of UTF-16, which puts U+E000 to U+FFFF last. */
export function byCodePoints(a: string, b: string): number {
  const length = Math.min(a.length, b.length);
  for (let at = 0; at < length; at += 1) {
    if (a[at] !== b[at]) return (a.codePointAt(at) as number) - (b.codePointAt(at) as number);
  }
  return a.length - b.length;
}
