/** What a client tells of itself. */

import type { Problem, Status } from "./config.js";
import type { Core } from "./core.js";
import type { Emitter } from "./emitter.js";
import { ClientClosed, ClientStopped, NotCaughtUp, TimedOut, type ClientError } from "./errors.js";

/** The part of the status that the leader knows. */
export type LeaderStatus = Omit<Status, "pending" | "rejected" | "durable" | "leader">;

export const OFFLINE: LeaderStatus = {
  phase: "offline",
  cursor: 0,
  cursors: {},
  setAside: {},
  draftsSetAside: {},
  modelVersion: null,
  lastError: null,
  stopped: null,
};

/** The tab with the connection fetches what its own model needs, so that a tab with another may show less. */
export const OTHER_MODEL: Problem = {
  code: "model_mismatch",
  message: "another tab has another model: reload it",
  atMs: 0,
};

export function leaderStatus(core: Core): { -readonly [K in keyof LeaderStatus]: LeaderStatus[K] } {
  const { state } = core;
  const aside = [...state.setAsideDrafts].filter(([id]) => core.hooks.replica.pending.has(id));
  return {
    phase: state.phase,
    cursor: state.cursors.size ? Math.min(...state.cursors.values()) : 0,
    cursors: Object.fromEntries(state.cursors),
    setAside: Object.fromEntries([...state.refusedPartitions, ...state.leftOut]),
    draftsSetAside: Object.fromEntries(aside.map(([id, draft]) => [id, draft.reason])),
    modelVersion: state.modelVersion ?? null,
    lastError: core.lastError,
    stopped: core.stopReason,
  };
}

export const alike = (a: unknown, b: unknown): boolean => JSON.stringify(a) === JSON.stringify(b);

/** What is waited for, or TimedOut with what the client waits for itself. */
export function within<R>(done: Promise<R>, timeoutMs: number | undefined, what: string, status: () => Status): Promise<R> {
  if (timeoutMs === undefined) return done;
  let timer: ReturnType<typeof setTimeout>;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      const { phase, pending, stopped, lastError } = status();
      const why = stopped ?? (lastError ? `${lastError.code}: ${lastError.message}` : `${pending} drafts pending`);
      reject(new TimedOut(`${what} within ${timeoutMs} ms: the client is ${phase}; ${why}`));
    }, timeoutMs);
  });
  return Promise.race([done, late]).finally(() => clearTimeout(timer));
}

/** Resolves when a client has caught up; rejects when it never will. `open`: whether it is started. */
export function untilCaughtUp(client: Emitter & { getStatus(): Status }, open: () => boolean): Promise<void> {
  let end: () => void = () => undefined;
  return new Promise<void>((resolve, reject) => {
    const check = () => {
      const verdict = open() ? whatIsMissing(client.getStatus()) : new ClientClosed("the client is not started");
      if (verdict === "waiting") return;
      if (verdict === null) resolve();
      else reject(verdict);
      end();
    };
    end = client.on("status", check);
    check();
  });
}

/** What keeps a client from having caught up for good; null when it has, "waiting" when it will. */
function whatIsMissing(status: Status): ClientError | "waiting" | null {
  const { setAside, draftsSetAside } = status;
  if (status.stopped !== null) return new ClientStopped(status.stopped);
  if (status.phase !== "live" || status.pending > Object.keys(draftsSetAside).length) return "waiting";
  return Object.keys({ ...setAside, ...draftsSetAside }).length ? new NotCaughtUp(setAside, draftsSetAside) : null;
}
