import assert from "node:assert/strict";
import { test } from "node:test";
import { presence } from "../dist/node.js";
import { renewInMs } from "../build/net/renewal.js";
import { caughtUp, client, started, token, unique, until } from "./support.mjs";

const BRIEF = { renewBeforeMs: 2000 };
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

test("a client outlives its tokens without being offline", async (t) => {
  const [part, a, b] = [unique("p"), unique("ann"), unique("ben")];
  let asked = 0;
  const short = () => {
    asked += 1;
    return token(a, 3);
  };
  const ann = client(a, [part], { token: short, options: BRIEF, extensions: [presence()] });
  const ben = client(b, [part], { extensions: [presence()] });
  await started(t, ann, ben);
  await caughtUp(ann, ben);
  ann.presence().set("here");
  const phases = new Set();
  const problems = [];
  ann.on("status", ({ status }) => phases.add(status.phase));
  ann.on("problem", ({ code, message }) => problems.push([code, message]));
  let number = 0;
  while (asked < 4) {
    number += 1;
    await ben.set("n", number);
    assert.equal((await (await ann.set("m", number)).settled({ timeoutMs: 20_000 })).status, "committed");
    await pause(20);
  }
  await caughtUp(ann, ben);
  await until(() => ann.view().n === number);
  assert.deepEqual(ann.view(), { m: number, n: number });
  assert.ok([...phases].every((phase) => phase === "live" || phase === "syncing"), [...phases]);
  assert.deepEqual(problems, []);
  assert.equal(ann.getStatus().stopped, null);
  await until(() => ben.presence().others[0]?.value === "here");
});

test("no newer token is no reason to stop", async (t) => {
  const [part, a] = [unique("p"), unique("ann")];
  const good = [token(a, 2), token(a, 60)];
  let asked = 0;
  const ann = client(a, [part], {
    options: BRIEF,
    token: async () => {
      asked += 1;
      if (asked === 2) throw new Error("the login service is away");
      return asked <= 3 ? good[0] : good[1];
    },
  });
  await started(t, ann);
  await caughtUp(ann);
  await until(() => asked >= 4);
  await caughtUp(ann);
  assert.equal((await (await ann.set("a", 1)).settled()).status, "committed");
});

test("a newer token that the server refuses is reported, and the old connection serves on", async (t) => {
  const [part, a] = [unique("p"), unique("ann")];
  const given = [token(a, 6), "no.token.at-all", token(a, 60)];
  const ann = client(a, [part], { options: BRIEF, token: () => given.shift() ?? token(a, 60) });
  await started(t, ann);
  await caughtUp(ann);
  const seen = [];
  ann.on("problem", ({ code, message }) => seen.push([code, message]));
  ann.on("status", ({ status }) => seen.push(status.phase));
  await until(() => given.length === 0);
  await caughtUp(ann);
  assert.equal(seen[0][0], "token_failed");
  assert.ok(!JSON.stringify(seen).includes("at-all"), "no message holds a token");
  assert.ok(!seen.includes("offline"), seen);
});

test("a fixed token is not renewed", async (t) => {
  const a = unique("ann");
  const ann = client(a, [unique("p")], { options: BRIEF, token: token(a, 2) });
  await started(t, ann);
  await caughtUp(ann);
  await until(() => ann.getStatus().stopped !== null);
  assert.match(ann.getStatus().stopped, /auth_failed/);
});

test("a pause or a stop ends a renewal", async (t) => {
  const a = unique("ann");
  const ann = client(a, [unique("p")], { options: BRIEF, token: () => token(a, 2) });
  await started(t, ann);
  for (let round = 0; round < 5; round += 1) {
    await caughtUp(ann);
    await pause(400);
    ann.pause();
    await until(() => ann.getStatus().phase === "offline");
    ann.resume();
  }
  await caughtUp(ann);
});

test("when a token is replaced", () => {
  const now = Date.now();
  const close = (value, expected) => assert.ok(Math.abs(value - expected) < 2000, `${value}, not ${expected}`);
  assert.equal(renewInMs("no token", 30_000, now), Infinity);
  assert.equal(renewInMs("a.e30.c", 30_000, now), Infinity);
  close(renewInMs(token("ä-ÿ?>", 86_400), 30_000, now), 86_370_000);
  close(renewInMs(token("a", 30), 30_000, now), 20_000);
  assert.equal(renewInMs(token("a", -5), 30_000, now), 0);
});
