import assert from "node:assert/strict";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { IDBFactory, IDBKeyRange } from "fake-indexeddb";
import { createFileStore, createIndexedDbStore, createMemoryStore } from "../dist/node.js";
import { caughtUp, client, started, token, unique } from "./support.mjs";

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
    assert.equal(all.older, null);
    assert.deepEqual(
      all.events.map(({ userId, event }) => [userId, event.payload.value]),
      [["Ann", 4], ["Ann", 3], ["Ann", 2], ["Ann", 1], ["Ann", 0], [null, 3], ["Ben", 2], ["Ann", 1]],
    );
    assert.ok(all.events.every((each) => each.statusUpdatedAt > before && each.partitions[0] === part));
    assert.deepEqual([all.events.at(-1).clientId, all.events.at(-2).clientId], [a, b]);
    const first = await ann.history(part, { limit: 3 });
    assert.deepEqual([first.events, first.older], [all.events.slice(0, 3), "store"]);
    const rest = await ann.history(part, { limit: 5, before: first.events.at(-1).committedId });
    assert.deepEqual([rest.events, rest.older], [all.events.slice(3), null]);
    assert.deepEqual(await ann.history(part, { before: all.events.at(-1).committedId }), { events: [], older: null });
  });
}
