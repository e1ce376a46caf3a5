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
    const value = snapshot.state; // one too deep for JSON comes taken apart, as an array
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
