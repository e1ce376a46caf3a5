import assert from "node:assert/strict";
import { test } from "node:test";
import { createMemoryStore, InvalidEvent } from "../dist/node.js";
import { caughtUp, client, control, PATIENCE_MS, server, started, token, unique, until } from "./support.mjs";

test("two clients see each other's events", async (t) => {
  const part = unique("p");
  const [ann, bob] = [client(unique("ann"), [part]), client(unique("bob"), [part])];
  await started(t, ann, bob);
  await caughtUp(ann, bob);
  const draft = await ann.tree("explorer").push({ id: "A", title: "Notes" });
  assert.deepEqual(ann.view(), { explorer: { items: { A: { title: "Notes" } }, tree: [{ id: "A", children: [] }] } });
  const outcome = await draft.settled({ timeoutMs: PATIENCE_MS });
  assert.equal(outcome.status, "committed");
  await until(() => JSON.stringify(bob.view()) === JSON.stringify(ann.view()));
  await bob.tree("explorer").push({ id: "B" }, { parent: "A" });
  await until(() => ann.view().explorer?.items.B);
  assert.equal(ann.getStatus().pending, 0);
  assert.equal(ann.getStatus().phase, "live");
});

test("drafts made offline go out in order", async (t) => {
  const part = unique("p");
  const store = createMemoryStore();
  const who = unique("ann");
  const ann = client(who, [part], { store, url: "ws://127.0.0.1:9/sync" });
  await ann.start();
  await until(() => ann.getStatus().lastError?.code === "unreachable");
  const pushes = ["A", "B", "C"].map((id) => ann.tree("list").push({ id }, { position: "last" }));
  await Promise.all(pushes);
  assert.equal(ann.getStatus().pending, 3);
  await ann.stop();
  const again = client(who, [part], { store });
  await started(t, again);
  assert.deepEqual(again.view().list.tree.map((node) => node.id), ["A", "B", "C"]);
  assert.deepEqual(again.pending().map((draft) => draft.draftClock), [1, 2, 3]);
  await caughtUp(again);
  assert.equal(again.pending().length, 0);
});

test("what the view refuses is not stored", async (t) => {
  const ann = client(unique("ann"), [unique("p")]);
  await started(t, ann);
  await assert.rejects(ann.tree("list").delete("nobody"), (error) => {
    assert.ok(error instanceof InvalidEvent);
    assert.equal(error.errors[0].field, "event.payload.target");
    return true;
  });
  await assert.rejects(ann.submitEvent({ event: { type: "set", payload: { target: "a", value: NaN } } }), InvalidEvent);
  await assert.rejects(ann.submitEvent({ event: { type: "set", payload: { target: "a", value: "\ud800" } } }), InvalidEvent);
  assert.equal(ann.getStatus().pending, 0);
});

test("several events are taken together or not at all", async (t) => {
  const part = unique("p");
  const ann = client(unique("ann"), [part]);
  await started(t, ann);
  const push = (id, parent) => ({
    event: { type: "treePush", payload: { target: "list", value: { id }, options: { parent } } },
  });
  await ann.submitEvents([push("A", "_root"), push("B", "A")]);
  await assert.rejects(ann.submitEvents([push("C", "A"), push("A", "_root")]), InvalidEvent);
  assert.deepEqual(Object.keys(ann.view().list.items), ["A", "B"]);
  await caughtUp(ann);
});

test("a rejected draft is kept with its reasons, and can be retried or discarded", async (t) => {
  const part = unique("p");
  const [ann, bob] = [client(unique("ann"), [part]), client(unique("bob"), [part])];
  await started(t, ann, bob);
  await caughtUp(ann, bob);
  await ann.tree("list").push({ id: "A" });
  await caughtUp(ann);
  await until(() => bob.view().list);
  ann.pause();
  await until(() => ann.getStatus().phase === "offline");
  await (await bob.tree("list").delete("A")).settled({ timeoutMs: PATIENCE_MS });
  const late = await ann.tree("list").update("A", { title: "late" });
  const other = await ann.set("other", 1);
  ann.resume();
  const outcome = await late.settled({ timeoutMs: PATIENCE_MS });
  assert.equal(outcome.status, "rejected");
  assert.equal(outcome.reason, "validation_failed");
  assert.equal(outcome.errors[0].field, "event.payload.options.id");
  assert.equal((await other.settled({ timeoutMs: PATIENCE_MS })).status, "committed");
  assert.equal(ann.rejected()[0].id, late.id);
  await assert.rejects(ann.retry(late.id), InvalidEvent);
  await bob.tree("list").push({ id: "A" });
  await until(() => ann.view().list.items.A);
  assert.equal((await (await ann.retry(late.id)).settled({ timeoutMs: PATIENCE_MS })).status, "committed");
  assert.equal(ann.rejected().length, 0);
  assert.equal(ann.view().list.items.A.title, "late");
});

test("kill -9 of the server loses nothing", async (t) => {
  const part = unique("p");
  const [ann, bob] = [client(unique("ann"), [part]), client(unique("bob"), [part])];
  await started(t, ann, bob);
  await caughtUp(ann, bob);
  const drafts = [];
  for (let n = 0; n < 30; n += 1) {
    drafts.push(await ann.tree("list").push({ id: `A${n}` }, { position: "last" }));
    if (n === 10) await control("kill");
    if (n === 20) await control("start");
    if (n % 5 === 0) await bob.set(`bob.k${n}`, n);
  }
  await caughtUp(ann, bob);
  await until(() => JSON.stringify(ann.view()) === JSON.stringify(bob.view()), "not the same view");
  assert.equal(bob.view().list.tree.length, 30);
  const ids = (await Promise.all(drafts.map((draft) => draft.settled()))).map((outcome) => outcome.committedId);
  assert.deepEqual(ids, [...ids].sort((a, b) => a - b));
});

test("a refused token is asked for again, and a fixed one stops the client", async (t) => {
  const part = unique("p");
  const who = unique("ann");
  let asked = 0;
  const ann = client(who, [part], { token: () => token(who, (asked += 1) === 1 ? -60 : 3600) });
  await started(t, ann);
  await caughtUp(ann);
  assert.equal(asked, 2);
  const fixed = client(who, [part], { token: token(who, -60) });
  await started(t, fixed);
  await until(() => fixed.getStatus().stopped !== null);
  assert.match(fixed.getStatus().stopped, /auth_failed/);
  assert.ok(!fixed.getStatus().stopped.includes(token(who, -60)));
});

test("partitions come and go", async (t) => {
  const [one, two] = [unique("p"), unique("p")];
  const [ann, bob] = [client(unique("ann"), [one, two]), client(unique("bob"), [one])];
  await started(t, ann, bob);
  await caughtUp(ann, bob);
  await ann.set("x", 1, { partition: two });
  await caughtUp(ann);
  assert.throws(() => bob.view(two));
  await bob.addPartition(two);
  await caughtUp(bob);
  await until(() => bob.view(two).x === 1);
  await bob.removePartition(two);
  assert.throws(() => bob.view(two));
  await caughtUp(bob);
  await bob.addPartition(two);
  await until(() => bob.view(two).x === 1);
});

test("a partition that is refused is set aside", async (t) => {
  const [good, bad] = [unique("p"), unique("secret")];
  const who = unique("ann");
  const ann = client(who, [good, bad], { token: () => token(who, 3600, { allowed_partitions: [good] }) });
  await started(t, ann);
  await until(() => ann.getStatus().phase === "live");
  assert.deepEqual(ann.getStatus().setAside, { [bad]: "forbidden" });
  await assert.rejects(ann.caughtUp(), /forbidden/);
});

test("a later connection of the same client_id stops the earlier one, and resume takes it back", async (t) => {
  const who = unique("ann");
  const part = unique("p");
  const [first, second] = [client(who, [part]), client(who, [part])];
  await started(t, first);
  await caughtUp(first);
  await started(t, second);
  await until(() => first.getStatus().stopped !== null);
  first.resume();
  await caughtUp(first);
  await until(() => second.getStatus().stopped !== null);
});

test("names and values of events mean nothing to JavaScript", async (t) => {
  const part = unique("p");
  const [ann, bob] = [client(unique("ann"), [part]), client(unique("bob"), [part])];
  await started(t, ann, bob);
  await caughtUp(ann, bob);
  for (const id of ["__proto__", "constructor", "toString", "0", "é"]) await ann.tree("__proto__").push({ id, n: 1e21 });
  await ann.submitEvent({ event: JSON.parse('{"type":"set","payload":{"target":"constructor.__proto__","value":{"__proto__":1}}}') });
  await caughtUp(ann);
  await until(() => JSON.stringify(bob.view()) === JSON.stringify(ann.view()));
  assert.deepEqual(Object.keys(bob.view()), ["__proto__", "constructor"]);
  assert.equal({}.n, undefined);
  assert.ok(server.url);
});
