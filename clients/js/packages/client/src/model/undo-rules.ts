/** What takes an event back, and how to see whether others have changed since what it changed. */

import { byteLength } from "../codec.js";
import { canonical } from "../canonical.js";
import type { Json, JsonObject } from "../wire.js";
import type { ModelState } from "./model.js";

/** What is found at a place: its length and a hash; null for nothing. Where an item stands is kept as it is. */
export type Fingerprint = string | readonly (string | null)[] | null;

/** A place with what an event left there. */
export type Left<P = unknown> = readonly [place: P, fingerprint: Fingerprint];

/** How one event is taken back. No `events`: it changed nothing. */
export interface Compensation<P = unknown> {
  readonly events: readonly JsonObject[];
  readonly left: readonly Left<P>[];
}

/** The part of a model that undo needs, for one kind of states. */
export interface UndoRules<P = unknown> {
  /** Let `change` apply an event; what it gives, and how the event is taken back: null when nothing does. */
  watch(state: ModelState, event: JsonObject, change: () => boolean): [boolean, Compensation<P> | null];
  fingerprint(state: ModelState, place: P): Fingerprint;
  /** A compensating event as it can be submitted to this state. */
  fitted(state: ModelState, event: JsonObject): JsonObject;
}

/** Of the compensating events of one event: more would not fit into the messages of most servers. */
const EVENTS_BYTES_MAX = 1_000_000;

/** States are deeper than events. */
const DEPTH_MAX = 10_000;

/** The compensation with what is there now; null when its events are too large, or the state too deep. */
export function compensation<P>(
  rules: UndoRules<P>,
  state: ModelState,
  events: readonly JsonObject[],
  places: readonly P[],
): Compensation<P> | null {
  try {
    if (byteLength(JSON.stringify(events)) > EVENTS_BYTES_MAX) return null;
    return { events, left: places.map((place) => [place, rules.fingerprint(state, place)]) };
  } catch (error) {
    if (error instanceof RangeError) return null;
    throw error;
  }
}

/** Whether nobody has changed these places since; an item may have got another neighbour on one side. */
export function unchanged<P>(rules: UndoRules<P>, state: ModelState, left: readonly Left<P>[]): boolean {
  return left.every(([place, then]) => {
    const now = rules.fingerprint(state, place);
    if (typeof then === "string" || typeof now === "string" || !then || !now) return then === now;
    return then[0] === now[0] && (then[1] === now[1] || then[2] === now[2]);
  });
}

/** Length and 53 bits of a value's canonical text: states are large, and each step keeps some of these. */
export function fingerprintOf(value: Json): string {
  const text = canonical(value, DEPTH_MAX);
  let high = 0xdeadbeef;
  let low = 0x41c6ce57;
  for (let at = 0; at < text.length; at += 1) {
    const unit = text.charCodeAt(at);
    high = Math.imul(high ^ unit, 2654435761);
    low = Math.imul(low ^ unit, 1597334677);
  }
  high = Math.imul(high ^ (high >>> 16), 2246822507) ^ Math.imul(low ^ (low >>> 13), 3266489909);
  low = Math.imul(low ^ (low >>> 16), 2246822507) ^ Math.imul(high ^ (high >>> 13), 3266489909);
  return `${text.length}/${4294967296 * (2097151 & low) + (high >>> 0)}`;
}
