/** Committed events: broadcasts, pages, and the reasons to start over (CLIENT-04..06, -10..12). */

import { isObject } from "../codec.js";
import { ENTRIES_MAX } from "../limits.js";
import type { CommittedEvent, Connected, ErrorMessage, SyncResponse } from "../wire.js";
import {
  applying,
  type PartitionAdded,
  type Received,
  type Reset,
  type Rewind,
  type StartState,
} from "./inputs-effects.js";
import { active, type SyncCycle } from "./state.js";
import { mapWithout, setWithout, type Transition } from "./transition.js";

const sizeOf = (event: CommittedEvent): number => JSON.stringify(event.event).length;

/** Store it now, or buffer it until the end of the cycle.
 *
 * Every event moves the cursor of each live partition; of broadcasts that come together, only the last one does.
 */
export function onBroadcast(step: Transition, event: CommittedEvent, more: boolean): void {
  step.noteCommittedId(event.committed_id);
  if (!event.partitions.some((name) => step.state.cursors.has(name))) return;
  const { cycle } = step.state;
  if (cycle === null) {
    step.countTail(1);
    step.apply(applying({ events: [event], cursors: more ? new Map() : step.liveCursors() }));
  } else if (cycle.syncTo !== null && event.committed_id <= cycle.syncTo) {
    step.apply(applying({ events: [event] }));
  } else {
    buffer(step, event, cycle);
  }
}

/** CLIENT-06: what may lie above the watermark waits in a bounded buffer. */
function buffer(step: Transition, event: CommittedEvent, cycle: SyncCycle): void {
  const { state } = step;
  const size = state.bufferedBytes + sizeOf(event);
  if (state.buffer.length >= state.options.bufferEventsMax || size > state.options.bufferBytesMax) {
    step.set({ cycle: { ...cycle, overflow: true }, buffer: [], bufferedBytes: 0 });
  } else if (!cycle.overflow) {
    step.set({ buffer: [...state.buffer, event], bufferedBytes: size });
  }
}

/** A sync_response: store it, or find that the server's log is not the one the store has. */
export function onPage(step: Transition, page: SyncResponse, received: Received): void {
  const { cycle } = step.state;
  if (step.state.pendingRequest !== "sync" || cycle === null) {
    step.report("unexpected", "a sync_response without a sync");
    return;
  }
  step.set({ pendingRequest: null });
  if (cycle.subscription !== null) step.set({ subscribed: cycle.subscription });
  learnDigest(step, page);
  const highest = cycle.partitions.reduce(
    (most, name) => Math.max(most, step.state.highestCursors.get(name) ?? 0),
    cycle.since,
  );
  const unusable = (received.unusable ?? []).filter((name) => cycle.partitions.includes(name));
  if (checkLog(step, page)) {
    step.requestNext();
  } else if (cycle.discardAnswer) {
    step.finishCycle(applying());
  } else if (page.sync_to_committed_id < highest) {
    step.set({ cycle: null });
    startOver(
      step,
      "cursor_ahead",
      `the client has events up to ${highest}, and the server's last is ${page.sync_to_committed_id}`,
    );
  } else if (page.has_more && page.next_since_committed_id <= cycle.since) {
    step.violation("a page with has_more that does not move on");
  } else if (page.model_version !== null && isOtherModel(step, page.model_version, page.model_digest)) {
    checkModel(step, page.model_version, page.model_digest);
    step.finishCycle(applying({ events: page.events }));
  } else if (unusable.length) {
    fetchFullHistory(step, cycle, unusable);
  } else {
    storePage(step, page, cycle, received.startStates ?? new Map());
  }
}

/** Unusable snapshots stand for events that did not come: request the whole history instead. */
function fetchFullHistory(step: Transition, cycle: SyncCycle, unusable: string[]): void {
  const names = unusable.map((name) => JSON.stringify(name)).join(", ");
  if (cycle.snapshots) {
    step.report("bad_snapshot", `the server's snapshot of ${names} cannot be used; fetching all events`);
    step.set({ fullHistoryOnly: new Set([...step.state.fullHistoryOnly, ...unusable]) });
    step.finishCycle(applying());
  } else {
    step.set({ wantsSnapshots: false });
    step.violation(`a snapshot of ${names} that was declined`);
  }
}

function storePage(
  step: Transition,
  page: SyncResponse,
  cycle: SyncCycle,
  bases: ReadonlyMap<string, StartState>,
): void {
  const { state } = step;
  const { sync_to_committed_id: syncTo, next_since_committed_id: nextSince } = page;
  const below = state.buffer.filter((event) => event.committed_id <= syncTo);
  const above = state.buffer.filter((event) => event.committed_id > syncTo);
  step.set({ buffer: above, bufferedBytes: above.reduce((sum, event) => sum + sizeOf(event), 0) });
  const names = cycle.partitions.filter((name) => state.cursors.has(name));
  const cursors = new Map(
    names.map((name) => [name, Math.max(nextSince, bases.get(name)?.committedId ?? 0)] as const),
  );
  let starts: ReadonlyMap<string, StartState | null> = new Map();
  if (cycle.syncTo === null && !cycle.since) {
    starts = new Map(
      names
        .filter((name) => bases.has(name) || state.snapshotBased.has(name))
        .map((name) => [name, bases.get(name) ?? null]),
    );
    const others = setWithout(state.snapshotBased, new Set(names));
    step.set({ snapshotBased: new Set([...others, ...names.filter((name) => bases.has(name))]) });
  }
  const apply = applying({ events: [...page.events, ...below], cursors, starts });
  if (!page.has_more) {
    const followed = active(state);
    step.set({
      live: new Set([...state.live, ...names.filter((name) => followed.includes(name))]),
      tailFetchDue: setWithout(state.tailFetchDue, new Set(names)),
      tailEvents: 0,
    });
    step.finishCycle(apply);
  } else if (cycle.endAfterPage) {
    step.finishCycle(apply);
  } else {
    step.set({ cycle: { ...cycle, since: nextSince, syncTo, subscription: null } });
    step.apply(apply);
  }
}

/** Stop requesting the partitions the server names; where it names none, request each alone to find them. */
export function onSyncError(step: Transition, error: ErrorMessage): void {
  const { state } = step;
  const cycle = state.cycle as SyncCycle;
  step.set({ pendingRequest: null });
  if (cycle.discardAnswer) {
    step.set({ subscribed: [] });
    step.finishCycle(applying());
    return;
  }
  if (error.code === "validation_failed" && cycle.partitions.length > ENTRIES_MAX) {
    // This server's limit on subscriptions is not its limit on the names of one sync.
    step.set({ namesMax: ENTRIES_MAX });
    step.finishCycle(applying());
    return;
  }
  const names = active(state);
  let refused = named(error, [...new Set([...names, ...cycle.partitions])]);
  if (!refused.length && (state.oneByOne || names.length === 1)) refused = [...cycle.partitions];
  refuse(step, refused, error.code);
  step.set({ oneByOne: state.oneByOne || !refused.length });
  step.leaveOutExcess();
  step.finishCycle(applying());
}

/** The server has taken partitions out of the subscriptions (AUTHZ-09): they are refused on this connection.
 *
 * A sync that names one of them gets an error of its own.
 */
export function onRevoked(step: Transition, error: ErrorMessage): void {
  const lost = named(error, active(step.state));
  refuse(step, lost, error.code);
  step.set({ subscribed: step.state.subscribed.filter((name) => !lost.includes(name)) });
  partitionsChanged(step);
}

/** Those of these partitions that an error names. */
function named(error: ErrorMessage, partitions: string[]): string[] {
  const listed = isObject(error.details) ? error.details["partitions"] : null;
  return Array.isArray(listed) ? partitions.filter((name) => listed.includes(name)) : [];
}

function refuse(step: Transition, partitions: readonly string[], code: string): void {
  const { state } = step;
  const gone = new Set(partitions);
  step.set({
    refusedPartitions: new Map([...state.refusedPartitions, ...partitions.map((name) => [name, code] as const)]),
    live: setWithout(state.live, gone),
    tailFetchDue: setWithout(state.tailFetchDue, gone),
  });
}

// -- starting over --------------------------------------------------------------------------------------------

/** The server names its log; true when it is another than before, so that everything starts over (DUR-08). */
export function checkLog(step: Transition, message: Connected | SyncResponse): boolean {
  const { log_id: logId, log_epoch: logEpoch } = message;
  if (logId === null || logEpoch === null) return false;
  const known = step.state.log;
  if (known !== null && known.logId === logId && known.logEpoch === logEpoch) return false;
  const log = { logId, logEpoch };
  step.set({ log });
  if (known === null) {
    step.emit({ kind: "NoteLog", log });
    return false;
  }
  const what = logId === known.logId ? "epoch of its log" : "log";
  step.report("log_changed", `the server has another ${what} than before; fetching everything again`);
  step.set({ buffer: [], bufferedBytes: 0, cycle: null, fullHistoryOnly: new Set(), highestSeenId: 0 });
  rewind(step, { kind: "Reset", log });
  return true;
}

/** The server names its model; when it is another than before, everything is fetched from 0 (CLIENT-10). */
export function checkModel(step: Transition, version: number | null, digest: string | null = null): void {
  const known = step.state.modelVersion;
  const other = isOtherModel(step, version, digest);
  step.set({ modelVersion: version, modelDigest: digest });
  if (!other) {
    step.emit({ kind: "NoteModel", version, digest });
    return;
  }
  const now = known !== version ? `${version} now, it was ${known}` : `${version} as before, with another content`;
  step.report("model_changed", `the server's model version is ${now}`);
  step.set({ fullHistoryOnly: new Set() });
  rewind(step, { kind: "Rewind", version, digest });
}

/** `version_changed` names a version only; the digest comes with the next page. */
function learnDigest(step: Transition, page: SyncResponse): void {
  const { state } = step;
  const { model_version: version, model_digest: digest } = page;
  if (digest !== null && state.modelDigest === null && version === state.modelVersion) {
    step.set({ modelDigest: digest });
    step.emit({ kind: "NoteModel", version, digest });
  }
}

/** Whether a model is another than the known one; digests are compared where both are known. */
function isOtherModel(step: Transition, version: number | null, digest: string | null): boolean {
  const { modelVersion, modelDigest } = step.state;
  if (modelVersion === undefined) return false;
  return modelVersion !== version || (digest !== null && modelDigest !== null && modelDigest !== digest);
}

/** CLIENT-11, CLIENT-12: the stored events are not those the server has. */
export function startOver(step: Transition, code: string, message: string): void {
  step.report(code, `${message}; fetching everything again`);
  step.set({ buffer: [], bufferedBytes: 0 });
  rewind(step, { kind: "Reset", log: null });
  step.requestNext();
}

/** Set every cursor to 0. A pending answer is discarded; buffered events are below the next watermark. */
function rewind(step: Transition, effect: Rewind | Reset): void {
  const { state } = step;
  step.set({
    cursors: new Map([...state.cursors.keys()].map((name) => [name, 0])),
    live: new Set(),
    tailFetchDue: new Set(),
    tailEvents: 0,
    cycle: state.cycle !== null && state.pendingRequest === "sync" ? { ...state.cycle, discardAnswer: true } : null,
  });
  if (effect.kind === "Reset") step.set({ highestCursors: new Map(), snapshotBased: new Set() });
  step.emit(effect);
}

// -- partitions -----------------------------------------------------------------------------------------------

/** Follow it from its cursor; request it again where it was refused. */
export function onPartitionAdded(step: Transition, added: PartitionAdded): void {
  const { state } = step;
  const name = added.partition;
  const others = setWithout(state.snapshotBased, new Set([name]));
  step.set({
    cursors: new Map([...state.cursors, [name, added.cursor]]),
    highestCursors: new Map([...state.highestCursors, [name, added.highestCursor]]),
    snapshotBased: added.snapshotBased ? others.add(name) : others,
    refusedPartitions: mapWithout(state.refusedPartitions, new Set([name])),
  });
  partitionsChanged(step);
}

/** Stop following it; a cycle that fetches it ends with the page under way. */
export function onPartitionRemoved(step: Transition, partition: string): void {
  const { state } = step;
  let { cycle } = state;
  if (cycle?.partitions.includes(partition)) {
    // Out of the cycle for good: added again before the answer comes, it starts from its own cursor.
    const partitions = cycle.partitions.filter((name) => name !== partition);
    const discardAnswer = cycle.discardAnswer || !partitions.length;
    cycle = { ...cycle, partitions, endAfterPage: true, discardAnswer };
  }
  const gone = new Set([partition]);
  step.set({
    cursors: mapWithout(state.cursors, gone),
    highestCursors: mapWithout(state.highestCursors, gone),
    refusedPartitions: mapWithout(state.refusedPartitions, gone),
    live: setWithout(state.live, gone),
    tailFetchDue: setWithout(state.tailFetchDue, gone),
    snapshotBased: setWithout(state.snapshotBased, gone),
    fullHistoryOnly: setWithout(state.fullHistoryOnly, gone),
    cycle,
  });
  partitionsChanged(step);
}

/** The server's limits are known on a connection only. */
function partitionsChanged(step: Transition): void {
  if (step.state.phase === "syncing" || step.state.phase === "live") step.leaveOutExcess();
  step.requestNext();
}
