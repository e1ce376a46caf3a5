// Clients of a test against the real server that the Python test started and controls.

import assert from "node:assert/strict";
import { createHmac, randomUUID } from "node:crypto";
import WebSocket, { WebSocketServer } from "ws";
import { createMemoryStore, createSyncClient, history, renewal, transactions, treeModel } from "../dist/node.js";

const CONTROL = process.env.UNISONO_CONTROL;
export const PATIENCE_MS = Number(process.env.UNISONO_PATIENCE_MS ?? 60_000);

export const QUICK = { backoffBaseMs: 20, backoffCapMs: 200, heartbeatIntervalMs: 1000, deadAfterMs: 2 * PATIENCE_MS };

/** Ask the Python test to do something with the server: `start`, `kill`, `stop`, `state`. */
export async function control(what) {
  const answer = await fetch(`${CONTROL}/${what}`, { method: "POST" });
  assert.equal(answer.status, 200, await answer.clone().text());
  return answer.json();
}

export const server = CONTROL ? await control("state") : { url: "ws://127.0.0.1:9/sync", secret: "none" };

const base64url = (value) => Buffer.from(value).toString("base64url");

export function token(clientId, ttlS = 3600, claims = {}) {
  const now = Math.floor(Date.now() / 1000);
  const body = { client_id: clientId, iat: now, exp: now + ttlS, ...claims };
  const signed = `${base64url('{"alg":"HS256","typ":"JWT"}')}.${base64url(JSON.stringify(body))}`;
  return `${signed}.${createHmac("sha256", Buffer.from(server.secret)).update(signed).digest("base64url")}`;
}

export const unique = (prefix) => `${prefix}-${randomUUID()}`;

/** A client of tree actions with a good token; `more` changes anything, and adds extensions. */
export function client(clientId, partitions, more = {}) {
  return createSyncClient({
    url: server.url,
    clientId,
    token: () => token(clientId),
    model: treeModel(),
    store: createMemoryStore(),
    partitions,
    WebSocket,
    ...more,
    extensions: [history(), renewal(), transactions(), ...(more.extensions ?? [])],
    options: { ...QUICK, ...more.options },
  });
}

/** Start clients for one test, and stop them with it. */
export async function started(test, ...clients) {
  for (const each of clients) {
    await each.start();
    test.after(() => each.stop());
  }
  return clients[0];
}

export async function until(condition, what = "waited in vain") {
  const end = Date.now() + PATIENCE_MS;
  while (!(await condition())) {
    assert.ok(Date.now() < end, what);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

export const caughtUp = (...clients) => Promise.all(clients.map((each) => each.caughtUp({ timeoutMs: PATIENCE_MS })));

/** A server that follows the protocol far enough, without any extension; `answers` says what it does with other messages. */
export async function peer(test, answers = {}) {
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
  await new Promise((resolve) => server.once("listening", resolve));
  test.after(() => server.close());
  const heard = [];
  const all = {
    connect: ({ client_id }, say) => say("connected", { client_id, capabilities: { profile: "compatibility", tree_policy: "strict" } }),
    sync: (_, say) => say("sync_response", { events: [], next_since_committed_id: 0, sync_to_committed_id: 0, has_more: false }),
    ...answers,
  };
  server.on("connection", (socket) => {
    const say = (type, payload) =>
      socket.send(JSON.stringify({ type, msg_id: "s", timestamp: 1, protocol_version: "1.0", payload }));
    socket.on("message", (data) => {
      const { type, payload } = JSON.parse(data);
      heard.push([type, payload]);
      all[type]?.(payload, say);
    });
  });
  return { url: `ws://127.0.0.1:${server.address().port}/`, heard };
}
