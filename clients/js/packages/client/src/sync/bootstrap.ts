/** Starting a partition from the server's snapshot instead of its whole history: when, and from what (CLIENT-15).
 *
 * A snapshot replaces the events before it. So only a client that needs nothing but their state asks for one: with tree
 * actions every client, because they mean the same in every model; with canonical events a client whose own model has
 * the version and the digest of the server's. A snapshot with any fault is not used; the whole history is fetched
 * instead.
 */

import { decodeSnapshots, isObject } from "../codec.js";
import type { Model } from "../model/model.js";
import type { Json, ServerSnapshot } from "../wire.js";
import type { Input, Received, StartState } from "./inputs-effects.js";
import type { SyncState } from "./state.js";

/** Which model folded a state: another name, version or content invalidates it (DUR-07). */
export const modelLabel = (model: Model): string =>
  model.half === "tree" ? "tree" : `${model.name}/${model.version}/${model.digest}`;

/** Whether the snapshots of any server could be used: a canonical model must know which content it stands for. */
export const mayUseSnapshots = (model: Model): boolean =>
  model.half === "tree" || (model.version !== null && model.digest !== null);

/** Whether this model can continue from a state of the server's model. */
export const canContinueFrom = (model: Model, version: number | null | undefined, digest: string | null): boolean =>
  model.half === "tree" ||
  (mayUseSnapshots(model) && model.version === version && (digest === null || digest === model.digest));

/** A page with its snapshots sorted into those to start from and those that cannot be used; other inputs as they are. */
export function checkSnapshots(input: Input, state: SyncState, model: Model): Input {
  const { cycle } = state;
  if (input.kind !== "Received" || input.message.type !== "sync_response") return input;
  const page = input.message.payload;
  if (!state.serverSendsSnapshots || cycle === null || page.snapshots === null) return input;
  const version = state.modelVersion;
  const digest = page.model_digest ?? state.modelDigest;
  const requested = cycle.snapshots && cycle.syncTo === null && canContinueFrom(model, version, digest);
  let snapshots: ServerSnapshot[];
  try {
    snapshots = decodeSnapshots(page.snapshots);
  } catch {
    return { ...input, unusable: cycle.partitions };
  }
  const startStates = new Map<string, StartState>();
  const unusable: string[] = [];
  for (const each of snapshots) {
    const ofModel = each.model_version === version && (each.model_digest === null || each.model_digest === digest);
    const inRange = each.committed_id > 0 && each.committed_id <= page.sync_to_committed_id;
    const start = requested && ofModel && inRange ? startState(each, model) : null;
    if (start === null) unusable.push(each.partition);
    else startStates.set(each.partition, start);
  }
  return { ...input, startStates, unusable } satisfies Received;
}

/** The snapshot as a start state; null when it does not load as the state of a partition. */
function startState(snapshot: ServerSnapshot, model: Model): StartState | null {
  try {
    const value = Array.isArray(snapshot.state) ? putTogether(snapshot.state) : snapshot.state;
    if (!isObject(value) || !isObject(value["tree"]) || !isObject(value["data"]) || Object.keys(value).length !== 2) {
      return null;
    }
    const state = value[model.half] as Json;
    model.load(state);
    JSON.stringify(state); // one too deep to be stored is fetched as events
    return { committedId: snapshot.committed_id, state };
  } catch {
    return null;
  }
}

/** A state that was too deep for JSON comes taken apart: scalars, and steps `[0, n]` and `[1, n]` that put the last n
 * values, or pairs of key and value, together. */
function putTogether(tokens: readonly Json[]): Json {
  const values: Json[] = [];
  for (const token of tokens) {
    if (!Array.isArray(token)) {
      values.push(token);
      continue;
    }
    const [kind, size] = token as [number, number];
    const parts = values.splice(values.length - size * (kind === 1 ? 2 : 1));
    if (kind === 0) {
      values.push(parts);
    } else {
      const pairs: [string, Json][] = [];
      for (let at = 0; at < parts.length; at += 2) pairs.push([parts[at] as string, parts[at + 1] as Json]);
      values.push(Object.fromEntries(pairs));
    }
  }
  if (values.length !== 1) throw new RangeError("packed data holds more than one value");
  return values[0] as Json;
}
