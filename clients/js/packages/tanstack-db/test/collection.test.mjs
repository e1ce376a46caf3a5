import assert from "node:assert/strict";
import { test } from "node:test";
import { createCollection } from "@tanstack/db";
import { treeRows, unisonoCollectionOptions } from "@unisono/tanstack-db";
import { caughtUp, client, started, unique, until } from "../../client/test/support.mjs";

const rows = (collection) => Object.fromEntries([...collection.values()].map(({ id, title }) => [id, title]));

test("a collection shows the view, and its changes are events", async (t) => {
  const part = unique("p");
  const [ann, ben] = [client(unique("ann"), [part]), client(unique("ben"), [part])];
  await started(t, ann, ben);
  const beds = createCollection(unisonoCollectionOptions({ client: ann, partition: part, ...treeRows("beds") }));
  await beds.preload();
  assert.deepEqual(rows(beds), {});
  await ben.tree("beds").push({ id: "a", title: "Beans" });
  await until(() => rows(beds).a === "Beans");
  const inserted = beds.insert({ id: "b", title: "Peas" });
  assert.equal(rows(beds).b, "Peas", "at once");
  await inserted.isPersisted.promise;
  await beds.update("a", (row) => { row.title = "Broad beans"; }).isPersisted.promise;
  await caughtUp(ann, ben);
  await until(() => ben.view().beds.items.b?.title === "Peas" && ben.view().beds.items.a.title === "Broad beans");
  await beds.delete("b").isPersisted.promise;
  assert.deepEqual(rows(beds), { a: "Broad beans" });
  await until(() => ben.view().beds.items.b === undefined);
  // Refused at once: nothing is stored, and the collection is as before.
  await assert.rejects(beds.insert({ id: "c", title: NaN }).isPersisted.promise, /NaN is not a JSON number/);
  assert.deepEqual(rows(beds), { a: "Broad beans" });
  await until(() => ann.pending().length === 0);
});

test("what the server refuses leaves the collection", async (t) => {
  const part = unique("p");
  const [ann, ben] = [client(unique("ann"), [part]), client(unique("ben"), [part])];
  await started(t, ann, ben);
  await ann.tree("beds").push({ id: "a", title: "Beans" });
  await until(() => ben.view().beds?.items.a);
  const beds = createCollection(unisonoCollectionOptions({ client: ben, partition: part, ...treeRows("beds") }));
  await beds.preload();
  ben.pause();
  await until(() => ben.getStatus().phase === "offline");
  await ann.tree("beds").delete("a");
  await caughtUp(ann);
  await beds.update("a", (row) => { row.title = "Late"; }).isPersisted.promise;
  assert.deepEqual(rows(beds), { a: "Late" }, "a draft is shown");
  ben.resume();
  await until(() => ben.rejected().length === 1);
  await until(() => Object.keys(rows(beds)).length === 0);
});
