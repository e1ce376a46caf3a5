import assert from "node:assert/strict";
import { test } from "node:test";
import { createMemoryStore, InvalidEvent, TransactionRefused } from "../dist/node.js";
import { caughtUp, client, PATIENCE_MS, peer, started, unique, until } from "./support.mjs";

const push = (id, more = {}) => ({
  event: { type: "treePush", payload: { target: "list", value: { id }, ...(more.parent && { options: { parent: more.parent } }) } },
  ...(more.partition && { partition: more.partition }),
});
const remove = (id, partition) => ({
  event: { type: "treeDelete", payload: { target: "list", options: { id } } },
  partition,
});
const put = (target, value, partition) => ({ event: { type: "set", payload: { target, value } }, ...(partition && { partition }) });
const items = (view) => Object.keys(view.list?.items ?? {}).sort();
const settled = (drafts) => Promise.all(drafts.map((draft) => draft.settled({ timeoutMs: PATIENCE_MS })));
const OFFLINE = { url: "ws://127.0.0.1:9/sync" };

function adjacent(outcomes) {
  const ids = outcomes.map((each) => each.committedId);
  assert.deepEqual(ids, ids.map((_, at) => ids[0] + at));
}

test("a transaction is shown and committed as a whole", async (t) => {
  const part = unique("p");
  const [ann, bob] = [client(unique("ann"), [part]), client(unique("bob"), [part])];
  await started(t, ann, bob);
  await caughtUp(ann, bob);
  const drafts = await ann.transaction([push("A"), push("B", { parent: "A" }), put("title", "x")]);
  assert.deepEqual(items(ann.view()), ["A", "B"]);
  adjacent(await settled(drafts));
  await until(() => JSON.stringify(bob.view()) === JSON.stringify(ann.view()));
  await assert.rejects(ann.transaction([push("C"), push("A")]), InvalidEvent);
  assert.deepEqual(items(ann.view()), ["A", "B"]);
  await assert.rejects(ann.transaction(Array.from({ length: 101 }, (_, n) => put("n", n))), TransactionRefused);
  assert.deepEqual(await ann.transaction([]), []);
  assert.equal(ann.getStatus().pending, 0);
});

test("transactions made offline go out whole after a restart", async (t) => {
  const [part, who, store] = [unique("p"), unique("ann"), createMemoryStore()];
  const ann = client(who, [part], { store, ...OFFLINE });
  await ann.start();
  await ann.set("before", 1);
  for (const n of [1, 2, 3]) await ann.transaction([push(`${n}a`), push(`${n}b`, { parent: `${n}a` })]);
  await ann.set("after", 1);
  await ann.stop();
  const again = client(who, [part], { store });
  await started(t, again);
  assert.equal(items(again.view()).length, 6);
  const drafts = again.pending();
  const outcomes = await settled(drafts);
  for (const n of [0, 1, 2]) adjacent(outcomes.slice(1 + 2 * n, 3 + 2 * n));
  await caughtUp(again);
});

test("its drafts rebase, and are rejected, retried and discarded together, in all partitions", async (t) => {
  const [p, q] = [unique("p"), unique("q")];
  const [ann, bob] = [client(unique("ann"), [p, q]), client(unique("bob"), [p, q])];
  await started(t, ann, bob);
  await ann.transaction([push("card", { partition: p }), put("title", "both", q)]);
  await caughtUp(ann, bob);
  await until(() => items(bob.view(p)).length);
  ann.pause();
  await until(() => ann.getStatus().phase === "offline");
  const moved = await ann.transaction([remove("card", p), push("card", { partition: q })]);
  const behind = await ann.transaction([push("below", { parent: "card", partition: q }), put("seen", 1, p)]);
  assert.deepEqual([items(ann.view(p)), items(ann.view(q))], [[], ["below", "card"]]);
  await (await bob.tree("list", p).delete("card")).settled({ timeoutMs: PATIENCE_MS });
  const torn = [];
  ann.on("change", () => {
    if ((ann.view(p).seen === 1) !== items(ann.view(q)).includes("below")) torn.push([ann.view(p), ann.view(q)]);
  });
  ann.resume();
  const outcomes = await settled([...moved, ...behind]);
  assert.deepEqual(
    outcomes.map((each) => each.reason),
    ["validation_failed", "not_processed", "validation_failed", "not_processed"],
  );
  assert.deepEqual([items(ann.view(p)), items(ann.view(q)), ann.view(p).seen], [[], [], undefined]);
  assert.deepEqual(torn, []);
  assert.equal(new Set(ann.rejected().map((each) => each.transaction)).size, 2);
  await assert.rejects(ann.retry(moved[1].id), InvalidEvent);
  await (await bob.tree("list", p).push({ id: "card" })).settled({ timeoutMs: PATIENCE_MS });
  await until(() => items(ann.view(p)).length);
  assert.equal((await (await ann.retry(moved[1].id)).settled({ timeoutMs: PATIENCE_MS })).status, "committed");
  assert.deepEqual([items(ann.view(p)), items(ann.view(q))], [[], ["card"]]);
  assert.equal(ann.rejected().length, 2);
  await ann.discard(behind[1].id);
  assert.equal(ann.rejected().length, 0);
});

test("a server without the extension never gets a part of it", async (t) => {
  const { url, heard } = await peer(t, {
    submit_events: ({ events }, say) => {
      const results = events.map((each, n) => ({ id: each.id, status: "committed", committed_id: n + 1, status_updated_at: 1 }));
      say("submit_events_result", { results });
    },
  });
  const [who, store] = [unique("ann"), createMemoryStore()];
  const offline = client(who, ["p"], { store, ...OFFLINE });
  await offline.start();
  const drafts = await offline.transaction([put("a", 1), put("b", 2)]);
  await offline.set("c", 3);
  await offline.stop();
  const ann = client(who, ["p"], { store, url });
  await started(t, ann);
  await caughtUp(ann);
  assert.deepEqual(ann.rejected().map((each) => [each.id, each.reason]), drafts.map(({ id }) => [id, "atomic_unsupported"]));
  assert.deepEqual(ann.view(), { c: 3 });
  await assert.rejects(ann.transaction([put("a", 1)]), TransactionRefused);
  assert.deepEqual(heard.filter(([type]) => type === "submit_events").map(([, payload]) => payload.events.length), [1]);
});
