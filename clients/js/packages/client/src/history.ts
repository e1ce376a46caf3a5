/** What happened in a partition, newest first: from the client's store, and from the server beyond it (EXT-20).
 *
 * The store has every event of a followed partition from its floor up to `known`; older ones are replaced by the state
 * that the server started the partition from. Those, and partitions that are not followed, are read from the server and
 * not stored. Tabs without the connection ask the one that has it.
 */

import { BadMessage, decodeEvents, isObject } from "./codec.js";
import type { HistoryPage, PastEvent } from "./config.js";
import { ClientError, HistoryUnavailable } from "./errors.js";
import type { Extension, ExtensionHost } from "./extension.js";
import { newId } from "./ids.js";
import { parseEvent } from "./store/apply.js";
import type { EventRecord } from "./store/types.js";
import type { Connected, Json, JsonObject } from "./wire.js";

/** Entries of a page: a screen or two. */
const LIMIT = 50;

/** How long the server, and the tab that asks it, may take for a page: archived history can be on remote storage. */
const TIMEOUT_MS = 30_000;

/** A request as it is sent to the server, or to the tab that has the connection. */
interface Request {
  readonly request_id: string;
  readonly partition: string;
  readonly limit: number;
  readonly before?: number;
}

interface Answer {
  readonly page?: HistoryPage;
  readonly error?: { readonly message: string; readonly code: string | null };
}

interface Waiter {
  readonly request: Request;
  answer(answer: Answer): void;
}

/** What tabs tell each other. */
type TabWord =
  | { readonly kind: "ask"; readonly request: Request }
  | { readonly kind: "answer"; readonly id: string; readonly answer: Answer }
  /** The tab with the connection can be asked. */
  | { readonly kind: "ready" };

const unavailable = (message: string, code: string | null = null): Answer => ({ error: { message, code } });

const NOT_CONNECTED = "the client is not connected to a server with the extension history";

const past = ({ places: _, event, userId = null, ...record }: EventRecord): PastEvent => ({
  ...record,
  userId,
  event: parseEvent(event),
});

export class History implements Extension {
  readonly name = "history";
  readonly types = ["history_result"];
  #host: ExtensionHost | null = null;
  /** What this tab waits for. */
  readonly #own = new Map<string, Waiter>();
  // Of the tab that has the connection, one request after the other:
  #send: ((type: string, payload: Json) => void) | null = null;
  readonly #queue: Waiter[] = [];
  #sent = false;

  /** At most `limit` events below `before`. Without the server a page may be shorter, and has a `nextBefore`. */
  async page(partition: string, { before, limit = LIMIT }: { before?: number; limit?: number }): Promise<HistoryPage> {
    if (!(limit >= 1) || (before !== undefined && !(before >= 1))) throw new RangeError("limit and before are above 0");
    const { log } = (this.#host as ExtensionHost).session;
    const [row, found] = await log.backend.run(false, async (transaction) => {
      const row = await transaction.get("partitions", partition);
      const records = row ? await transaction.newestOf(partition, Math.min(before ?? Infinity, row.known + 1), limit + 1) : [];
      return [row, records.map(past)];
    });
    if (!row?.known) return this.#ask(partition, before, limit);
    const events = found.slice(0, limit);
    if (found.length > limit) return { partition, events, nextBefore: (events.at(-1) as PastEvent).committedId };
    if (!row.floor) return { partition, events, nextBefore: null };
    const nextBefore = Math.min(before ?? Infinity, row.floor + 1);
    if (events.length === limit) return { partition, events, nextBefore };
    try {
      const rest = await this.#ask(partition, nextBefore, limit - events.length);
      return { ...rest, events: [...events, ...rest.events] };
    } catch (error) {
      if (events.length && error instanceof HistoryUnavailable) return { partition, events, nextBefore };
      throw error;
    }
  }

  /** Ask the server, here or in the tab that has the connection. */
  #ask(partition: string, before: number | undefined, limit: number): Promise<HistoryPage> {
    const { session } = this.#host as ExtensionHost;
    const request = { request_id: newId(), partition, limit, ...(before !== undefined && { before }) };
    return new Promise((resolve, reject) => {
      const id = request.request_id;
      const timer = setTimeout(() => waiter.answer(unavailable(`the server has not answered for ${TIMEOUT_MS} ms`)), TIMEOUT_MS);
      const waiter: Waiter = {
        request,
        answer: ({ page, error }) => {
          clearTimeout(timer);
          this.#own.delete(id);
          if (page) resolve(page);
          else reject(new HistoryUnavailable(error?.message ?? "", error?.code));
        },
      };
      this.#own.set(id, waiter);
      if (session.core) this.#take(waiter);
      else if (session.status.phase === "syncing" || session.status.phase === "live") this.#tell({ kind: "ask", request });
      else waiter.answer(unavailable(NOT_CONNECTED));
    });
  }

  #tell(word: TabWord): void {
    this.#host?.tabs.send({ type: "extension", name: this.name, data: word });
  }

  open(host: ExtensionHost): void {
    if (this.#host) throw new ClientError("history() belongs to one client: make another");
    this.#host = host;
  }

  close(): void {
    this.#disconnect("the client was stopped");
    for (const waiter of [...this.#own.values()]) waiter.answer(unavailable("the client was stopped"));
    this.#host = null;
  }

  heard(data: unknown): void {
    const word = data as TabWord;
    if (word.kind === "answer") this.#own.get(word.id)?.answer(word.answer);
    else if (word.kind === "ready") for (const { request } of this.#own.values()) this.#tell({ kind: "ask", request });
    else if (this.#host?.session.core) {
      const id = word.request.request_id;
      const known = this.#queue.some(({ request }) => request.request_id === id);
      if (!known) this.#take({ request: word.request, answer: (answer) => this.#tell({ kind: "answer", id, answer }) });
    }
  }

  // -- the connection -----------------------------------------------------------------------------------------

  connected({ capabilities }: Connected, send: (type: string, payload: Json) => void): void {
    if (!capabilities?.extensions.includes(this.name)) return;
    this.#send = send;
    this.#tell({ kind: "ready" });
    this.#sendNext();
  }

  lost(): void {
    this.#disconnect("the connection was lost before the server had answered");
  }

  #disconnect(why: string): void {
    this.#send = null;
    this.#sent = false;
    for (const waiter of this.#queue.splice(0)) waiter.answer(unavailable(why));
  }

  #take(waiter: Waiter): void {
    if (!this.#send) {
      waiter.answer(unavailable(NOT_CONNECTED));
      return;
    }
    this.#queue.push(waiter);
    this.#sendNext();
  }

  #sendNext(): void {
    const [first] = this.#queue;
    if (!first || this.#sent) return;
    this.#sent = true;
    this.#send?.("history", { ...first.request });
  }

  /** The answer to the request that was sent last; any other is of a connection before. */
  message(type: string, payload: JsonObject): void {
    const { request_id: id, partition = "", events = [], next_before: nextBefore = null, error = null } = payload;
    const [first] = this.#queue;
    if (!this.#sent || !first || first.request.request_id !== id) return;
    if (typeof partition !== "string" || (nextBefore !== null && !Number.isSafeInteger(nextBefore))) {
      throw new BadMessage(`${type}: of the wrong type`);
    }
    const found = decodeEvents(events, type);
    this.#queue.shift();
    this.#sent = false;
    if (isObject(error)) {
      const code = String(error["code"]);
      first.answer(unavailable(`${code}: ${String(error["message"])}`, code));
    } else {
      const entries = found.map((each) => ({
        id: each.id,
        committedId: each.committed_id,
        clientId: each.client_id,
        partitions: each.partitions,
        event: isObject(each.event) ? each.event : {},
        userId: each.user_id,
        statusUpdatedAt: Math.trunc(each.status_updated_at),
      }));
      first.answer({ page: { partition, events: entries, nextBefore: nextBefore as number | null } });
    }
    this.#sendNext();
  }
}

/** The history of partitions for one client: `extensions: [history()]`. */
export const history = (): History => new History();
