/** One process at a time: a file beside the store names the one that has it.
 *
 * A process that was killed leaves its file behind. It is taken over when that process is gone: no process has the
 * number, or another one that was started at another time.
 */

import { link, readFile, rename, rm, writeFile } from "node:fs/promises";
import { StoreInUse } from "../errors.js";

/** The stores this process has open. */
const held = new Set<string>();

export async function takeLock(store: string): Promise<void> {
  const path = `${store}.lock`;
  const own = `${path}.${process.pid}`;
  await writeFile(own, `${process.pid} ${await startOf(process.pid)}`);
  try {
    for (;;) {
      try {
        await link(own, path); // whole or not at all, unlike creating and then writing
        held.add(path);
        return;
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
      }
      const text = await readFile(path, "utf8").catch(() => null);
      if (text === null) continue;
      const [pid = 0, start = 0] = text.split(" ").map(Number);
      if (held.has(path) || (await isRunning(pid, start))) {
        throw new StoreInUse(`${store} is open in process ${pid}; remove ${path} if that is not so`);
      }
      await takeAway(path, `${own}.stale`, text);
    }
  } finally {
    await rm(own, { force: true });
  }
}

export async function releaseLock(store: string): Promise<void> {
  const path = `${store}.lock`;
  if (held.delete(path)) await rm(path, { force: true });
}

/** Remove a lock that was left behind, and not one that another process has put in its place meanwhile. */
async function takeAway(path: string, aside: string, expected: string): Promise<void> {
  await rename(path, aside).catch(() => undefined);
  const found = await readFile(aside, "utf8").catch(() => expected);
  if (found !== expected) await link(aside, path).catch(() => undefined);
  await rm(aside, { force: true });
}

/** A process that answers is the one that is meant only if it started when that one did. */
async function isRunning(pid: number, start: number): Promise<boolean> {
  if (!pid || pid === process.pid) return false;
  try {
    process.kill(pid, 0);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EPERM") return false;
  }
  const now = await startOf(pid);
  return !start || !now || now === start;
}

/** When a process started, in ticks since the machine did; 0 where the system does not say. */
async function startOf(pid: number): Promise<number> {
  const stat = await readFile(`/proc/${pid}/stat`, "utf8").catch(() => "");
  return Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19] ?? 0) || 0;
}
