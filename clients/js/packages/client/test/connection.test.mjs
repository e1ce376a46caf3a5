import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { createMemoryStore, DEFAULTS, treeModel } from "../dist/node.js";
import { backoffMs, ServerConnection } from "../build/net/connection.js";
import { newId } from "../build/ids.js";

/** A socket that opens at once and answers heartbeats while it is told to. */
class Line {
  static all = [];
  static answers = true;
  readyState = 0;
  sent = [];

  constructor() {
    Line.all.push(this);
    queueMicrotask(() => {
      this.readyState = 1;
      this.onopen?.({});
    });
  }

  send(data) {
    const message = JSON.parse(data);
    this.sent.push(message.type);
    if (Line.answers && message.type === "heartbeat") this.say("heartbeat_ack", {});
  }

  say(type, payload) {
    const data = JSON.stringify({ type, msg_id: "s", timestamp: 1, protocol_version: "1.0", payload });
    queueMicrotask(() => this.onmessage?.({ data }));
  }

  close() {
    this.readyState = 3;
  }
}

async function connected(t) {
  mock.timers.enable({ apis: ["setTimeout", "setInterval"] });
  t.after(() => mock.timers.reset());
  Line.all = [];
  Line.answers = true;
  let now = 0;
  const seen = { inputs: [], problems: [] };
  const owner = {
    feed: async (...inputs) => void seen.inputs.push(...inputs.map((each) => each.kind)),
    report: (code) => seen.problems.push(code),
    stopped: () => undefined,
    extension: () => undefined,
    lost: () => undefined,
  };
  const config = {
    url: "ws://nowhere/",
    clientId: "ann",
    token: "t",
    model: treeModel(),
    store: createMemoryStore(),
    WebSocket: Line,
    options: { ...DEFAULTS, backoffBaseMs: 1, backoffCapMs: 1 },
  };
  const connection = new ServerConnection(config, owner, () => now);
  connection.start();
  const settle = async () => {
    for (let n = 0; n < 20; n += 1) await Promise.resolve();
  };
  await settle();
  return {
    connection,
    seen,
    /** Let time pass in steps, as timers of a page fire. */
    async pass(ms, step) {
      for (let gone = 0; gone < ms; gone += step) {
        now += step;
        // A slowed-down page fires a timer once for the whole step.
        mock.timers.tick(Math.min(step, DEFAULTS.heartbeatIntervalMs));
        await settle();
      }
    },
  };
}

test("half an hour in a tab whose timers fire once a minute ends no connection", async (t) => {
  const { connection, seen, pass } = await connected(t);
  await pass(30 * 60_000, 60_000);
  assert.equal(Line.all.length, 1);
  assert.deepEqual(seen.problems, []);
  assert.equal(Line.all[0].sent.filter((type) => type === "heartbeat").length, 30);
  await connection.close();
});

test("a laptop that slept does not take its server for dead before it has asked", async (t) => {
  const { connection, seen, pass } = await connected(t);
  await pass(20_000, 10_000);
  await pass(8 * 3600_000, 8 * 3600_000);
  assert.deepEqual(seen.problems, []);
  assert.equal(Line.all.length, 1);
  await connection.close();
});

test("a server that answers no heartbeat is dead, and another connection is tried", async (t) => {
  const { connection, seen, pass } = await connected(t);
  await pass(20_000, 10_000);
  Line.answers = false;
  await pass(50_000, 10_000);
  assert.ok(seen.problems.includes("dead_server"), seen.problems);
  assert.ok(seen.inputs.includes("Lost"));
  assert.ok(Line.all.length >= 2);
  await connection.close();
});

test("what is no message ends the connection", async (t) => {
  const { connection, seen, pass } = await connected(t);
  Line.all[0].onmessage({ data: '{"type":"sync_response","payload":{"events":7}}' });
  await pass(20_000, 10_000);
  assert.deepEqual(seen.problems, ["protocol_violation"]);
  assert.ok(Line.all.length >= 2);
  await connection.close();
});

test("waits double up to a bound, with full jitter", () => {
  const waits = [1, 2, 3, 20].map((tries) => backoffMs(tries, DEFAULTS, 1));
  assert.deepEqual(waits, [500, 1000, 2000, 30_000]);
  assert.equal(backoffMs(5, DEFAULTS, 0), 0);
});

test("ids rise, also within one millisecond and when the clock is set back", () => {
  const ids = [...Array(5000)].map((_, n) => newId(1_700_000_000_000 - (n % 3)));
  assert.deepEqual([...ids].sort(), ids);
  assert.equal(new Set(ids).size, ids.length);
  assert.match(ids[0], /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
});
