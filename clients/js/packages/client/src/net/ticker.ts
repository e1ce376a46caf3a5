/** A clock for heartbeats that keeps going in a background tab.
 *
 * Browsers let the timers of a hidden page fire once a minute only, too rarely for a server that expects a heartbeat
 * every half minute. Timers of a worker are not slowed down, so a worker of three lines gives the beat; where a page may
 * not start one, its own timers do.
 */

export interface Ticker {
  stop(): void;
}

export function startTicker(intervalMs: number, tick: () => void): Ticker {
  const { Worker, URL, Blob } = globalThis;
  if (typeof document !== "undefined" && typeof Worker === "function") {
    try {
      const source = `setInterval(()=>postMessage(0),${Number(intervalMs)})`;
      const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      const worker = new Worker(url);
      let own: ReturnType<typeof setInterval> | null = null;
      worker.onmessage = tick;
      worker.onerror = () => {
        own ??= setInterval(tick, intervalMs);
      };
      return {
        stop() {
          worker.terminate();
          URL.revokeObjectURL(url);
          if (own !== null) clearInterval(own);
        },
      };
    } catch {
      // The page's security policy forbids it.
    }
  }
  const timer = setInterval(tick, intervalMs);
  return { stop: () => clearInterval(timer) };
}
