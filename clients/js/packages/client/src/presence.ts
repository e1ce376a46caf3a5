/** Who is in a partition now, and what this client says of itself there (EXT-05 to EXT-09).
 *
 * Nothing of it is stored. To the server the tabs of one browser are one client with one value in a partition: the tab
 * that has the connection sends what any tab said last. What a tab said ends with the tab, and what another one said
 * counts again. A value is sent again before it expires and after each reconnect. Offline nobody is there.
 */

import { canonical, NotCanonical } from "./canonical.js";
import { BadMessage, byteLength, isObject } from "./codec.js";
import { ClientError, InvalidEvent } from "./errors.js";
import type { Extension, ExtensionHost } from "./extension.js";
import { startTicker, type Ticker } from "./net/ticker.js";
import type { Connected, Json, JsonObject, PresenceUpdate } from "./wire.js";

/** Between two messages about one partition: a server passes them on about as often. */
const SEND_INTERVAL_MS = 100;

/** A value is sent again after this part of its time to live, so that a lost message or two do no harm. */
const SAY_AGAIN_SHARE = 3;

/** No server takes more. */
const VALUE_BYTES_MAX = 4096;

/** Somebody who is there. `userId` is the person behind the client, where the server knows it. */
export interface Present {
  readonly clientId: string;
  readonly userId: string | null;
  readonly value: Json;
}

/** The presence of one partition. */
export interface PartitionPresence {
  readonly partition: string;
  /** Everybody else who is there, by clientId. The same list until it changes. */
  readonly others: readonly Present[];
  /** Say something to the others, such as a name and a cursor, until it is set again or cleared, or the tab closes. */
  set(value: Json): void;
  /** Say nothing any more. */
  clear(): void;
}

interface Said {
  readonly tab: string;
  readonly partition: string;
  /** null takes back what the tab said. */
  readonly value: Json;
  readonly atMs: number;
}

/** What tabs tell each other. */
type TabWord =
  | { readonly kind: "said"; readonly said: Said }
  /** The tab with the connection asks the others what they said. */
  | { readonly kind: "ask" }
  /** A new tab asks who is there. */
  | { readonly kind: "hello" }
  | { readonly kind: "update"; readonly update: PresenceUpdate }
  | { readonly kind: "lost" };

const NOBODY: readonly Present[] = [];

export class Presence implements Extension {
  readonly name = "presence";
  readonly types = ["presence_update"];
  #host: ExtensionHost | null = null;
  /** What this tab says. */
  readonly #own = new Map<string, { value: Json; atMs: number }>();
  readonly #others = new Map<string, Map<string, Present>>();
  readonly #rosters = new Map<string, readonly Present[]>();
  // Of the tab that has the connection:
  #send: ((type: string, payload: Json) => void) | null = null;
  #bytesMax = Infinity;
  readonly #said = new Map<string, Map<string, Said>>();
  readonly #watched = new Set<string>();
  readonly #due = new Set<string>();
  #timer: ReturnType<typeof setTimeout> | null = null;
  #sayAgainMs = 0;
  #ticker: Ticker | null = null;

  /** The presence of a partition, by its normalised name. */
  in(partition: string): PartitionPresence {
    const rosters = this.#rosters;
    return {
      partition,
      get others() {
        return rosters.get(partition) ?? NOBODY;
      },
      set: (value) => this.#set(partition, value),
      clear: () => this.#set(partition, null),
    };
  }

  #set(partition: string, value: Json): void {
    try {
      const bytes = byteLength(canonical(value));
      if (bytes > VALUE_BYTES_MAX) {
        throw new NotCanonical("", `has ${bytes} bytes, at most ${VALUE_BYTES_MAX} are allowed`);
      }
    } catch (error) {
      if (!(error instanceof NotCanonical)) throw error;
      throw new InvalidEvent([{ field: error.field ? `value.${error.field}` : "value", message: error.message }]);
    }
    if (value === null && !this.#own.has(partition)) return;
    const atMs = Date.now();
    if (value === null) this.#own.delete(partition);
    else this.#own.set(partition, { value, atMs });
    this.#tellOwn(partition, value, atMs);
  }

  #tellOwn(partition: string, value: Json, atMs: number): void {
    if (this.#host === null) return;
    const said = { tab: this.#host.tabs.id, partition, value, atMs };
    if (this.#send) this.#take(said);
    else this.#tell({ kind: "said", said });
  }

  #tell(word: TabWord): void {
    this.#host?.tabs.send({ type: "extension", name: this.name, data: word });
  }

  // -- the client ---------------------------------------------------------------------------------------------

  open(host: ExtensionHost): void {
    if (this.#host !== null) throw new ClientError("presence() belongs to one client: make another");
    this.#host = host;
    this.#tell({ kind: "hello" });
    for (const [partition, { value, atMs }] of this.#own) this.#tellOwn(partition, value, atMs);
  }

  close(): void {
    for (const partition of [...this.#own.keys()]) this.#set(partition, null);
    this.#disconnect();
    this.#clearOthers();
    this.#host = null;
  }

  heard(data: unknown): void {
    const word = data as TabWord;
    switch (word.kind) {
      case "said":
        if (this.#send) this.#take(word.said);
        break;
      case "ask":
        for (const [partition, { value, atMs }] of this.#own) this.#tellOwn(partition, value, atMs);
        break;
      case "hello":
        if (this.#send) for (const partition of this.#others.keys()) this.#tell({ kind: "update", update: this.#all(partition) });
        break;
      case "update":
        this.#update(word.update);
        break;
      case "lost":
        this.#disconnect();
        this.#clearOthers();
        break;
      default:
        word satisfies never;
    }
  }

  // -- the connection -----------------------------------------------------------------------------------------

  connected(payload: Connected, send: (type: string, payload: Json) => void): void {
    this.lost();
    if (!payload.capabilities?.extensions.includes(this.name)) return;
    this.#send = send;
    this.#bytesMax = payload.limits?.max_presence_bytes ?? Infinity;
    this.#sayAgainMs = (payload.limits?.presence_ttl_ms ?? 0) / SAY_AGAIN_SHARE;
    this.#tell({ kind: "ask" });
    for (const [partition, { value, atMs }] of this.#own) this.#tellOwn(partition, value, atMs);
  }

  message(type: string, payload: JsonObject): void {
    const { partition, present = [], gone = [], complete = false } = payload as Partial<PresenceUpdate>;
    if (typeof partition !== "string" || !Array.isArray(gone) || !Array.isArray(present) || !present.every(isObject)) {
      throw new BadMessage(`${type}: of the wrong type`);
    }
    const update = { partition, present, gone, complete };
    this.#update(update);
    this.#tell({ kind: "update", update });
  }

  lost(): void {
    if (this.#send || this.#others.size) this.#tell({ kind: "lost" });
    this.#disconnect();
    this.#clearOthers();
  }

  #disconnect(): void {
    this.#send = null;
    this.#said.clear();
    this.#due.clear();
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    this.#ticker?.stop();
    this.#ticker = null;
  }

  // -- who is there -------------------------------------------------------------------------------------------

  #update(update: PresenceUpdate): void {
    const { partition } = update;
    const known = update.complete ? new Map<string, Present>() : (this.#others.get(partition) ?? new Map());
    for (const { client_id: clientId, user_id: userId = null, value } of update.present) {
      if (clientId !== this.#host?.clientId) known.set(clientId, { clientId, userId, value });
    }
    for (const clientId of update.gone) known.delete(clientId);
    this.#others.set(partition, known);
    const order = (a: Present, b: Present) => (a.clientId < b.clientId ? -1 : 1);
    this.#rosters.set(partition, [...known.values()].sort(order));
    if (!known.size) {
      this.#others.delete(partition);
      this.#rosters.delete(partition);
    }
    this.#host?.emit({ type: "presence", partition });
  }

  #clearOthers(): void {
    const partitions = [...this.#others.keys()];
    this.#others.clear();
    this.#rosters.clear();
    for (const partition of partitions) this.#host?.emit({ type: "presence", partition });
  }

  #all(partition: string): PresenceUpdate {
    const known = [...(this.#others.get(partition)?.values() ?? [])];
    const present = known.map(({ clientId, userId, value }) => ({ client_id: clientId, user_id: userId, value }));
    return { partition, complete: true, present, gone: [] };
  }

  // -- what the tabs say --------------------------------------------------------------------------------------

  #take(said: Said): void {
    const { tab, partition, value } = said;
    const words = this.#said.get(partition) ?? new Map<string, Said>();
    if (value === null) words.delete(tab);
    else words.set(tab, said);
    if (words.size) this.#said.set(partition, words);
    else this.#said.delete(partition);
    this.#watch(tab);
    this.#schedule(partition);
  }

  /** What a tab said ends with it. */
  #watch(tab: string): void {
    const { tabs } = this.#host as ExtensionHost;
    if (tab === tabs.id || this.#watched.has(tab)) return;
    this.#watched.add(tab);
    void tabs.gone(tab).then(() => {
      this.#watched.delete(tab);
      for (const words of [...this.#said.values()]) {
        const said = words.get(tab);
        if (said && this.#send) this.#take({ ...said, value: null });
      }
    });
  }

  /** Send it now, or with the next ones when something was sent a moment ago. */
  #schedule(partition: string): void {
    this.#due.add(partition);
    if (this.#timer === null) this.#sendDue();
  }

  #sendDue(): void {
    this.#timer = this.#due.size ? setTimeout(() => this.#sendDue(), SEND_INTERVAL_MS) : null;
    for (const partition of this.#due) this.#say(partition);
    this.#due.clear();
    if (!this.#said.size) {
      this.#ticker?.stop();
      this.#ticker = null;
    } else if (this.#sayAgainMs > 0) {
      this.#ticker ??= startTicker(this.#sayAgainMs, () => [...this.#said.keys()].forEach((each) => this.#say(each)));
    }
  }

  #say(partition: string): void {
    const words = [...(this.#said.get(partition)?.values() ?? [])];
    const value = words.sort((a, b) => b.atMs - a.atMs)[0]?.value ?? null;
    const bytes = byteLength(canonical(value));
    const fits = bytes <= this.#bytesMax;
    if (!fits) {
      const message = `what is said in ${partition} has ${bytes} bytes, the server takes ${this.#bytesMax}`;
      this.#said.delete(partition);
      this.#host?.emit({ type: "problem", code: "presence_too_large", message, atMs: Date.now() });
    }
    this.#send?.("presence", { partition, value: fits ? value : null });
  }
}

/** Presence for one client: `extensions: [presence()]`. */
export const presence = (): Presence => new Presence();
