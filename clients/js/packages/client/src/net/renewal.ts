/** A new token before the old one ends: the next connection is made while this one still serves.
 *
 * A token cannot be renewed on a connection (AUTH-04), but a newer connection takes over its client_id (CONN-05). It is
 * opened, and has been answered `connected`, before the client leaves the old one.
 */

import { decode, encode, type ServerMessage } from "../codec.js";
import type { Socket } from "../config.js";
import type { Extension } from "../extension.js";
import type { Input } from "../sync/inputs-effects.js";
import { CLOSE_REPLACED } from "../wire.js";
import { OPEN, ServerConnection, type Ended } from "./connection.js";

/** A token is replaced at the earliest after two thirds of its life, however short that is. */
const LIFE_SHARE = 3;

/** Between two attempts to get a newer token. */
const RETRY_MS = 1000;

/** A connection that has been accepted under a new token, with what came on it since. */
export interface Successor {
  readonly socket: Socket;
  readonly token: string;
  readonly connected: ServerMessage;
  readonly received: unknown[];
}

/** When a token is to be replaced, in ms from now; Infinity when it does not say when it ends. */
export function renewInMs(token: string, beforeMs: number, nowMs: number): number {
  try {
    const body = (token.split(".")[1] as string).replaceAll("-", "+").replaceAll("_", "/");
    const { exp } = JSON.parse(atob(body)) as { exp?: unknown };
    const leftMs = typeof exp === "number" ? exp * 1000 - nowMs : Infinity;
    return Math.max(0, leftMs - Math.min(beforeMs, leftMs / LIFE_SHARE));
  } catch {
    return Infinity;
  }
}

/** Connect with another token; rejects with the reason when the server does not accept it within so many ms. */
function succeed(socket: Socket, token: string, connect: string, timeoutMs: number): Promise<Successor> {
  return new Promise<Successor>((resolve, reject) => {
    const received: unknown[] = [];
    const fail = (why: string) => {
      clearTimeout(timer);
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close(1000);
      reject(new Error(why));
    };
    const timer = setTimeout(() => fail(`the server did not answer within ${timeoutMs} ms`), timeoutMs);
    socket.onerror = () => undefined; // a close follows
    socket.onclose = () => fail("the server closed the connection");
    socket.onopen = () => socket.send(encode("connect", "c0", Date.now(), connect));
    socket.onmessage = ({ data }: { data: unknown }) => {
      try {
        const message = decode(String(data));
        if (message.type === "error") fail(`${message.payload["code"]}: ${message.payload["message"]}`);
        if (message.type !== "connected") return;
        clearTimeout(timer);
        socket.onmessage = (event: { data: unknown }) => received.push(event.data);
        resolve({ socket, token, connected: message as ServerMessage, received });
      } catch (error) {
        fail(String(error));
      }
    };
  });
}

/** What is done for one connection, to replace it. */
interface Attempt {
  readonly dueMs: number;
  readonly timer: ReturnType<typeof setTimeout>;
  making: Promise<Successor | null> | null;
  /** The server may have seen the new connection. */
  opening: boolean;
  ended: boolean;
}

/** What it needs of the connection that is replaced. */
interface RenewalHost {
  /** Another token than the present one, or null. */
  ask(): Promise<string | null>;
  dial(): Socket;
  connectPayload(token: string): string;
  readonly timeoutMs: number;
  /** A connection is ready to take over. */
  made(): void;
  report(error: unknown): void;
}

/** Makes the connection that takes over. At most one is being made. */
export class TokenRenewal {
  #attempt: Attempt | null = null;

  constructor(readonly host: RenewalHost) {}

  /** A connection has begun to serve with a token. */
  serving(token: string, renewBeforeMs: number): void {
    const renewMs = renewInMs(token, renewBeforeMs, Date.now());
    if (renewBeforeMs > 0 && renewMs < Infinity) this.#start(renewMs);
  }

  /** Replace the connection in so many ms. */
  #start(inMs: number): void {
    const timer = setTimeout(() => this.check(), Math.min(inMs, 2 ** 31 - 1));
    this.#attempt = { dueMs: Date.now() + inMs - 10, timer, making: null, opening: false, ended: false };
  }

  /** Start what is due; the heartbeat asks too, because the timers of a hidden page fire late. */
  check(): void {
    const attempt = this.#attempt;
    if (attempt === null || attempt.making !== null || Date.now() < attempt.dueMs) return;
    attempt.making = this.#make(attempt);
  }

  async #make(attempt: Attempt): Promise<Successor | null> {
    const { host } = this;
    try {
      const token = await host.ask();
      if (token !== null && !attempt.ended) {
        attempt.opening = true;
        const successor = await succeed(host.dial(), token, host.connectPayload(token), host.timeoutMs);
        host.made();
        return successor;
      }
    } catch (error) {
      // Without a newer token the old one still serves; when it ends, the next connection says what is wrong.
      if (attempt.opening) host.report(error);
    }
    if (!attempt.ended) this.#start(RETRY_MS);
    return null;
  }

  /** The connection has ended: the one that takes over, if it is being made and the client is to be online. */
  take(online: boolean): Promise<Successor | null> | null {
    const attempt = this.#attempt;
    this.#attempt = null;
    if (attempt === null) return null;
    attempt.ended = true;
    clearTimeout(attempt.timer);
    if (attempt.opening && online) return attempt.making;
    void attempt.making?.then((successor) => successor?.socket.close(1000));
    return null;
  }
}

/** A connection that is replaced before its token ends. */
export class RenewingConnection extends ServerConnection {
  /** A socket that takes over, until the core is told. */
  #adopting: Socket | null = null;
  readonly #renewal = new TokenRenewal({
    ask: async () => {
      const token = await this.newToken();
      return token === this.token ? null : token;
    },
    dial: () => this.dial(),
    connectPayload: (token) => this.connectPayload(token),
    timeoutMs: this.config.options.connectTimeoutMs,
    made: () => this.dropConnection(),
    report: (error) => this.owner.report("token_failed", `the connection with a new token: ${this.withoutToken(error)}`),
  });

  override connect(lastCommittedId: number, snapshots: boolean): void {
    const socket = this.#adopting;
    super.connect(lastCommittedId, snapshots);
    if (socket) this.socket = socket; // it has connected already
    this.#adopting = null;
  }

  protected override async once(): Promise<Ended> {
    let [lastedMs, code] = await super.once();
    for (;;) {
      const making = this.#renewal.take(!this.closed && !this.paused);
      const next = await this.#taken(making);
      // The server let go of the old connection for the new one, which then failed: nobody else took its place.
      if (!next && making && code === CLOSE_REPLACED) code = null;
      if (!next) return [lastedMs, code];
      this.owner.lost();
      [lastedMs, code] = await this.#takeOver(next);
    }
  }

  /** The connection that takes over, when it is made, unless the program has paused or ended meanwhile. */
  async #taken(making: Promise<Successor | null> | null): Promise<Successor | null> {
    const successor = (await Promise.race([making, this.ending])) ?? null;
    if (!this.closed && !this.paused) return successor;
    void making?.then((late) => late?.socket.close(1000));
    return null;
  }

  #takeOver({ socket, token, connected: message, received }: Successor): Promise<Ended> {
    return this.serve(socket, (opened, abandon) => {
      this.token = this.lastToken = token;
      this.#adopting = socket;
      opened();
      const taken = [{ kind: "Lost", code: null }, { kind: "Dialing" }, { kind: "Opened" }, { kind: "Received", message }];
      void this.owner.feed(...(taken as Input[]));
      for (const data of received) this.read(data);
      if (socket.readyState !== OPEN) abandon();
    });
  }

  protected override opened(): void {
    const { token, options } = this.config;
    if (typeof token !== "string") this.#renewal.serving(this.lastToken, options.renewBeforeMs);
  }

  protected override beat(): void {
    this.#renewal.check();
    super.beat();
  }
}

/** Make-before-break for one client. */
export class Renewal implements Extension {
  readonly name = "renewal";
  readonly Connection = RenewingConnection;
}

/** A token that a function gives is replaced before it ends, without a gap: `extensions: [renewal()]` (CLIENT-16). */
export const renewal = (): Renewal => new Renewal();
