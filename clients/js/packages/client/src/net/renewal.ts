/** A new token before the old one ends: the next connection is made while this one still serves.
 *
 * A token cannot be renewed on a connection (AUTH-04), but a newer connection takes over its client_id (CONN-05). It is
 * opened, and has been answered `connected`, before the client leaves the old one.
 */

import { decode, encode, type ServerMessage } from "../codec.js";
import type { Socket } from "../config.js";

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
export function succeed(socket: Socket, token: string, connect: string, timeoutMs: number): Promise<Successor> {
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

/** Makes the connection that takes over. At most one is being made. */
export class TokenRenewal {
  #attempt: Attempt | null = null;

  /** `ask` gives another token than the present one, or null; `open` connects with it; `made`: one is ready. */
  constructor(
    readonly ask: () => Promise<string | null>,
    readonly open: (token: string) => Promise<Successor>,
    readonly made: () => void,
    readonly report: (error: unknown) => void,
  ) {}

  /** Replace the connection in so many ms. */
  start(inMs: number): void {
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
    try {
      const token = await this.ask();
      if (token !== null && !attempt.ended) {
        attempt.opening = true;
        const successor = await this.open(token);
        this.made();
        return successor;
      }
    } catch (error) {
      // Without a newer token the old one still serves; when it ends, the next connection says what is wrong.
      if (attempt.opening) this.report(error);
    }
    if (!attempt.ended) this.start(RETRY_MS);
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
