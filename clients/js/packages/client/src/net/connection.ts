/** The socket: dial, wait, dial again; heartbeats; a token when one is needed (CLIENT-08, -09).
 *
 * The core decides what is sent and when. A connection feeds it what came in, and performs its effects: send, drop the
 * socket, retry, stop. At most one socket serves; each try feeds the core `Dialing`, perhaps `Opened`, then `Lost`.
 */

import { BadMessage, decode, encode, type ServerMessage } from "../codec.js";
import type { Config, Socket, SocketConstructor } from "../config.js";
import type { Options } from "../options.js";
import type { Input } from "../sync/inputs-effects.js";
import { COMPATIBILITY } from "../sync/state.js";
import type { Connect, JsonObject } from "../wire.js";
import { startTicker, type Ticker } from "./ticker.js";

/** What has come in and waits for the store; a WebSocket cannot be told to wait, so past this it is closed. */
const QUEUED_CHARS_MAX = 64 * 1024 * 1024;

export const OPEN = 1;

/** What a connection needs of its core. */
export interface ConnectionOwner {
  feed(...inputs: Input[]): Promise<void>;
  report(code: string, message: string): void;
  stopped(reason: string | null): void;
  extension(type: string, payload: JsonObject): void;
  lost(): void;
}

/** How long to wait after so many tries that did not last; `chance` is from 0 to 1 (full jitter). */
export const backoffMs = (tries: number, options: Options, chance: number): number =>
  chance * Math.min(options.backoffCapMs, options.backoffBaseMs * 2 ** Math.min(Math.max(0, tries - 1), 32));

/** How long a socket was open, and its close code. */
export type Ended = [lastedMs: number, code: number | null];

export class ServerConnection {
  readonly #options: Options;
  readonly #Socket: SocketConstructor;
  protected socket: Socket | null = null;
  #connectArguments: [number, boolean] = [0, false];
  #numbers = 0;
  protected token: string | null = null;
  protected lastToken = "";
  #tokenIsNew = false;
  #tries = 0;
  #queuedChars = 0;
  #received: ServerMessage[] = [];
  #receivedChars = 0;
  protected paused = false;
  #hurry = false;
  protected closed = false;
  #end: () => void = () => undefined;
  protected readonly ending = new Promise<void>((resolve) => (this.#end = resolve));
  #timer: ReturnType<typeof setTimeout> | null = null;
  #timerAt = Infinity;
  #unansweredSince: number | null = null;
  #tickedAt = 0;
  #wake: (() => void) | null = null;
  #abandon: (() => void) | null = null;
  #running: Promise<void> = Promise.resolve();
  readonly #nudge = () => this.nudge();

  constructor(
    readonly config: Config,
    readonly owner: ConnectionOwner,
    readonly now: () => number,
  ) {
    this.#options = config.options;
    const found = config.WebSocket ?? (globalThis.WebSocket as unknown as SocketConstructor | undefined);
    if (!found) throw new TypeError("there is no global WebSocket: give one, as of the package ws");
    this.#Socket = found;
  }

  // -- effects of the core ------------------------------------------------------------------------------------

  connect(lastCommittedId: number, snapshots: boolean): void {
    this.#connectArguments = [lastCommittedId, snapshots];
    this.send("connect", this.connectPayload(this.lastToken));
  }

  protected connectPayload(token: string): string {
    const { clientId, model, extensions } = this.config;
    const [lastCommittedId, snapshots] = this.#connectArguments;
    const body: Connect = {
      token,
      client_id: clientId,
      last_committed_id: lastCommittedId,
      supported_profiles: [model.profile],
      required_profile: model.profile,
      ...(model.profile === COMPATIBILITY && { required_tree_policy: "strict" }),
      ...(snapshots && { snapshots: true }),
      extensions: ["identity", ...extensions.filter((each) => each.types).map((each) => each.name)],
    };
    for (const extension of extensions) Object.assign(body, extension.connect?.());
    return JSON.stringify(body);
  }

  send(type: string, payload: string): void {
    if (this.socket?.readyState !== OPEN) return;
    this.#numbers += 1;
    this.socket.send(encode(type, `c${this.#numbers}`, Date.now(), payload));
  }

  dropConnection(): void {
    this.#abandon?.();
  }

  retry(newToken: boolean): void {
    if (!newToken) return;
    if (typeof this.config.token === "string") {
      this.stop("auth_failed: the server refuses the token, and there is no function to ask for another");
      return;
    }
    this.token = null;
    // A newer token can be requested at once: no reason to wait.
    if (!this.#tokenIsNew) this.#hurry = true;
  }

  stop(reason: string): void {
    this.paused = true;
    this.owner.stopped(reason);
  }

  /** Set the one timer to the earliest time asked for; when it fires the core asks for the next one. */
  wakeAt(at: number): void {
    if (this.closed || at >= this.#timerAt) return;
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timerAt = at;
    const wait = Math.min(Math.max(0, at - this.now()), 2 ** 31 - 1);
    this.#timer = setTimeout(() => {
      this.#timerAt = Infinity;
      void this.owner.feed({ kind: "TimerFired" });
    }, wait);
  }

  // -- calls of the program -----------------------------------------------------------------------------------

  start(): void {
    globalThis.addEventListener?.("online", this.#nudge);
    globalThis.document?.addEventListener("visibilitychange", this.#nudge);
    this.#running = this.#run();
  }

  /** Go offline and stay there. */
  pause(): void {
    this.paused = true;
    this.#leave("client_paused");
    this.#abandon?.();
  }

  /** Go online now, also after a stop. */
  resume(): void {
    this.paused = false;
    this.#tries = 0;
    this.owner.stopped(null);
    this.#wake?.();
  }

  /** The network may be back, or the page is shown again: find out now. */
  nudge(): void {
    if (this.socket === null) this.#wake?.();
    else this.beat();
  }

  async close(): Promise<void> {
    this.closed = true;
    this.#end();
    globalThis.removeEventListener?.("online", this.#nudge);
    globalThis.document?.removeEventListener("visibilitychange", this.#nudge);
    this.#leave("client_closed");
    this.#abandon?.();
    this.#wake?.();
    if (this.#timer !== null) clearTimeout(this.#timer);
    await this.#running;
  }

  /** Send `disconnect`, so that the server drops the subscriptions at once (CONN-06). */
  #leave(reason: string): void {
    this.send("disconnect", JSON.stringify({ reason }));
  }

  // -- one socket after the other -----------------------------------------------------------------------------

  async #run(): Promise<void> {
    while (!this.closed) {
      if (this.paused) {
        await this.#sleep(null);
        continue;
      }
      this.#hurry = false;
      await this.owner.feed({ kind: "Dialing" });
      const [lastedMs, code] = await this.once();
      this.#tries = lastedMs >= this.#options.stableAfterMs ? 0 : this.#tries + 1;
      this.owner.lost();
      await this.owner.feed({ kind: "Lost", code });
      if (!this.closed && !this.paused && !this.#hurry) {
        await this.#sleep(backoffMs(this.#tries, this.#options, Math.random()));
      }
    }
  }

  /** Wait so long, or until something wakes it. */
  #sleep(ms: number | null): Promise<void> {
    if (this.closed) return Promise.resolve();
    return new Promise((resolve) => {
      const timer = ms === null ? undefined : setTimeout(resolve, ms);
      this.#wake = () => {
        this.#wake = null;
        clearTimeout(timer);
        resolve();
      };
    });
  }

  /** Run one socket from its opening to its end; gives how long it was open, and its close code. */
  protected async once(): Promise<Ended> {
    const patienceMs = this.#options.connectTimeoutMs;
    const slow = setTimeout(() => {
      this.owner.report("token_failed", `the token function has not answered for ${patienceMs} ms`);
    }, patienceMs);
    try {
      this.lastToken = (await Promise.race([this.#askToken(), this.ending])) ?? "";
    } catch (error) {
      this.owner.report("token_failed", `asking for a token failed: ${this.withoutToken(error)}`);
      return [0, null];
    } finally {
      clearTimeout(slow);
    }
    if (this.closed || this.paused) return [0, null];
    try {
      return await this.serve(this.dial());
    } catch (error) {
      this.owner.report("unreachable", this.withoutToken(error));
      return [0, null];
    }
  }

  /** A socket is open. */
  protected opened(): void {}

  protected dial(): Socket {
    return new this.#Socket(this.config.url);
  }

  /** `take`: a socket that is open already is put to use. */
  protected serve(socket: Socket, take?: (opened: () => void, abandon: () => void) => void): Promise<Ended> {
    return new Promise((resolve) => {
      let openedAt: number | null = null;
      let ticker: Ticker | null = null;
      const ended = (code: number | null) => {
        if (this.#abandon !== abandon) return;
        this.#abandon = this.socket = null;
        ticker?.stop();
        clearTimeout(timeout);
        socket.onopen = socket.onmessage = socket.onclose = null;
        socket.onerror = () => undefined;
        this.#handle();
        resolve([openedAt === null ? 0 : this.now() - openedAt, code]);
      };
      const abandon = () => {
        ended(null);
        socket.close(1000);
      };
      this.#abandon = abandon;
      const timeout = setTimeout(() => {
        this.owner.report("unreachable", `the server did not answer within ${this.#options.connectTimeoutMs} ms`);
        abandon();
      }, this.#options.connectTimeoutMs);
      const opened = () => {
        clearTimeout(timeout);
        openedAt = this.#tickedAt = this.now();
        this.#numbers = 0;
        this.#queuedChars = 0;
        this.#received = [];
        this.#unansweredSince = null;
        this.opened();
        ticker = startTicker(this.#options.heartbeatIntervalMs, () => this.beat());
      };
      socket.onerror = () => undefined; // a close follows
      socket.onclose = (event: { code?: number; reason?: string }) => {
        if (openedAt === null) this.owner.report("unreachable", `${this.config.url} cannot be connected to`);
        ended(event.code ?? null);
      };
      socket.onmessage = (event: { data: unknown }) => this.read(event.data);
      socket.onopen = () => {
        opened();
        this.socket = socket;
        void this.owner.feed({ kind: "Opened" });
      };
      take?.(opened, abandon);
    });
  }

  async #askToken(): Promise<string> {
    const { token } = this.config;
    if (typeof token === "string") return token;
    this.#tokenIsNew = this.token === null;
    this.token ??= await this.newToken();
    return this.token;
  }

  protected async newToken(): Promise<string> {
    const given = await (this.config.token as () => string | Promise<string>)();
    if (typeof given !== "string" || !given) throw new TypeError("a token is a non-empty string");
    return given;
  }

  /** No message holds a token (AUTH-08). */
  protected withoutToken(error: unknown): string {
    const says = String(error);
    return this.lastToken ? says.replaceAll(this.lastToken, "…") : says;
  }

  // -- messages -----------------------------------------------------------------------------------------------

  protected read(data: unknown): void {
    this.#unansweredSince = null;
    try {
      if (typeof data !== "string") throw new BadMessage("a binary message");
      const message = decode(data);
      if ("unknown" in message) {
        this.owner.extension(message.type, message.payload);
        return;
      }
      this.#queuedChars += data.length;
      this.#receivedChars += data.length;
      if (this.#queuedChars > QUEUED_CHARS_MAX) throw new BadMessage("more messages than can be stored in time");
      // Messages that arrive together are stored together.
      if (this.#received.push(message) === 1) queueMicrotask(() => setTimeout(() => this.#handle(), 0));
    } catch (error) {
      if (!(error instanceof BadMessage)) throw error;
      this.owner.report("protocol_violation", error.message);
      this.dropConnection();
    }
  }

  #handle(): void {
    const received = this.#received;
    const chars = this.#receivedChars;
    this.#received = [];
    this.#receivedChars = 0;
    if (!received.length) return;
    void this.owner
      .feed(...received.map((message) => ({ kind: "Received", message }) as const))
      .finally(() => (this.#queuedChars -= chars));
  }

  /** Send a heartbeat. A server is dead when it answered none for a while, not when this page stood still. */
  protected beat(): void {
    const now = this.now();
    const late = now - this.#tickedAt > 2 * this.#options.heartbeatIntervalMs;
    this.#tickedAt = now;
    if (late) this.#unansweredSince = null;
    const silentMs = this.#unansweredSince === null ? 0 : now - this.#unansweredSince;
    if (silentMs > this.#options.deadAfterMs) {
      this.owner.report("dead_server", `the server answered no heartbeat for ${Math.round(silentMs)} ms`);
      this.dropConnection();
      return;
    }
    this.#unansweredSince ??= now;
    this.send("heartbeat", "{}");
  }
}
