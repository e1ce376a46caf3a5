// How events are taken back, compared with what Python found.

import { canonical } from "../build/canonical.js";
import { unchanged } from "../build/model/undo-rules.js";

/** As Python writes it: the compensating events, the places, the events as they fit a later state, and whether what was
 * left is still there. */
export function spelled(rules, compensation, state) {
  if (compensation === null) return null;
  const { events, left } = compensation;
  const places = left.map(([place]) => canonical(place)).sort((a, b) => (Buffer.compare(Buffer.from(a), Buffer.from(b))));
  return canonical([events, places, events.map((event) => rules.fitted(state, event)), unchanged(rules, state, left)], 1e6);
}
