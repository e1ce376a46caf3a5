import assert from "node:assert/strict";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { IDBFactory, IDBKeyRange } from "fake-indexeddb";
import { createFileStore, createIndexedDbStore, createMemoryStore, HistoryUnavailable } from "../dist/node.js";
import { caughtUp, client, started, token, unique, until } from "./support.mjs";

globalThis.IDBKeyRange ??= IDBKeyRange;

const STORES = {
  memory: () => createMemoryStore(),
  file: () => createFileStore(join(mkdtempSync(join(tmpdir(), "history-")), "ann.store")),
  indexeddb: () => createIndexedDbStore({ indexedDB: new IDBFactory() }),
};

for (const [name, store] of Object.entries(STORES)) {
  test(`who did what and when, from a store in ${name}`, async (t) => {
    const [part, a, b] = [unique("p"), unique("ann"), unique("ben")];
    const ann = client(a, [part], { store: store(), token: () => token(a, 3600, { sub: "Ann" }) });
    const ben = client(b, [part], { token: () => token(b, 3600, { sub: "Ben" }) });
    const zoe = client(unique("zoe"), [part]);
    await started(t, ann, ben, zoe);
    await caughtUp(ann, ben, zoe);
    const before = Date.now() - 60_000;
    await (await ann.set("a", 1)).settled();
    await (await ben.set("b", 2)).settled();
    await (await zoe.set("c", 3)).settled();
    for (let n = 0; n < 5; n += 1) await ann.set("a", n);
    await caughtUp(ann);
    const all = await ann.history();
    assert.deepEqual([all.partition, all.nextBefore], [part, null]);
    assert.deepEqual(
      all.events.map(({ userId, event }) => [userId, event.payload.value]),
      [["Ann", 4], ["Ann", 3], ["Ann", 2], ["Ann", 1], ["Ann", 0], [null, 3], ["Ben", 2], ["Ann", 1]],
    );
    assert.ok(all.events.every((each) => each.statusUpdatedAt > before && each.partitions[0] === part));
    assert.deepEqual([all.events.at(-1).clientId, all.events.at(-2).clientId], [a, b]);
    const first = await ann.history(part, { limit: 3 });
    assert.deepEqual([first.events, first.nextBefore], [all.events.slice(0, 3), all.events[2].committedId]);
    const rest = await ann.history(part, { limit: 5, before: first.nextBefore });
    assert.deepEqual([rest.events, rest.nextBefore], [all.events.slice(3), null]);
    const none = await ann.history(part, { before: all.events.at(-1).committedId });
    assert.deepEqual(none, { partition: part, events: [], nextBefore: null });
    // A partition that is not followed is read from the server, and not stored.
    const outside = client(unique("out"), [unique("q")]);
    await started(t, outside);
    await caughtUp(outside);
    const read = [];
    for (let before; before !== null; ) {
      const page = await outside.history(part, { limit: 3, ...(before && { before }) });
      read.push(...page.events);
      before = page.nextBefore;
    }
    assert.deepEqual(read, all.events);
    outside.pause();
    await until(() => outside.getStatus().phase === "offline");
    await assert.rejects(outside.history(part), HistoryUnavailable);
    await assert.rejects(outside.history(part, { limit: 0 }), RangeError);
  });
}

test("what the server refuses has its code", async (t) => {
  const [part, who] = [unique("p"), unique("ann")];
  const ann = client(who, [part], { token: () => token(who, 3600, { allowed_partitions: [part] }) });
  await started(t, ann);
  await caughtUp(ann);
  const asked = [ann.history(unique("secret")), ann.history(unique("secret"))];
  for (const each of asked) await assert.rejects(each, (error) => error instanceof HistoryUnavailable && error.code === "forbidden");
  assert.equal(ann.getStatus().phase, "live");
});
