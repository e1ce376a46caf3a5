/** What a model is: what events mean for the state of a partition, in one profile.
 *
 * A model judges in two steps. `shape` looks at the event alone. `refusals` looks at the event and at the state it
 * would change, and is asked only when `shape` found nothing. `apply` changes the state and is called only when
 * `refusals` found nothing.
 */

import type { FieldError, Json, JsonObject } from "../wire.js";
import type { Tree } from "./tree-shorthands.js";

/** The state of one partition; changed in place, undone exactly. */
export interface ModelState {
  mark(): number;
  rollback(mark: number): void;
  settle(): void;
  /** The state as plain JSON that shares nothing with it. */
  dump(): Json;
}

export interface Model<S extends ModelState = ModelState> {
  readonly profile: "canonical" | "compatibility";
  /** Which half of a server's snapshot this model's state is. */
  readonly half: "data" | "tree";
  readonly name: string;
  /** The server's model version this model stands for; null where it stands for none. */
  readonly version: number | null;
  /** The digest of the server's model; null where it is not known. */
  readonly digest: string | null;
  /** The shorthands for the actions on one tree, of a model that has them. */
  tree?<R>(submit: (event: JsonObject) => R, target: string): Tree<R>;
  empty(): S;
  /** The state that `dump`, or a server's snapshot, gave; throws when it cannot be one. */
  load(dumped: Json): S;
  shape(event: JsonObject): FieldError[];
  refusals(state: S, event: JsonObject): FieldError[];
  /** Change the state by an event nothing speaks against; throws, and changes nothing, when a reducer fails. */
  apply(state: S, event: JsonObject): void;
  /** Change the state by an event of the log; false, and no change, where it cannot be applied. */
  replay(state: S, event: JsonObject): boolean;
}

export const EVENT_TYPE = "event";
