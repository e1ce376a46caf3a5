import assert from "node:assert/strict";
import { appendFile, mkdtemp, open, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import "fake-indexeddb/auto";
import { createFileStore, createIndexedDbStore, createMemoryStore, StoreError, StoreForeign, StoreInUse } from "../build/node.js";
import { EventLog } from "../build/store/log.js";
import { applying } from "../build/sync/inputs-effects.js";
import { unique } from "./support.mjs";

/** Every store keeps the same promises: `make` gives a way to open the same store again and again. */
const KINDS = {
  memory: async () => {
    const store = createMemoryStore();
    return () => store;
  },
  indexeddb: async () => {
    const name = unique("db");
    return () => createIndexedDbStore({ name });
  },
  file: async (t) => {
    const directory = await mkdtemp(join(tmpdir(), "unisono-"));
    t.after(() => rm(directory, { recursive: true }));
    return () => createFileStore(join(directory, "ann.store"));
  },
};

const own = await open(new URL(import.meta.url));
const FileHandle = own.constructor;
await own.close();

const LABEL = "tree";
const draft = (id, partitions = ["p"]) => ({ id, partitions, event: `{"type":"set","payload":{"value":"${id}"}}`, createdAt: 1 });
const event = (committedId, partitions = ["p"], id = `e${committedId}`) => ({
  id,
  committed_id: committedId,
  partitions,
  event: JSON.parse(`{"type":"set","payload":{"__proto__":${committedId}}}`),
  client_id: "bob",
  status_updated_at: 5,
});

async function contents(log, name) {
  const found = { start: null, events: [] };
  const row = await log.read(
    name,
    LABEL,
    (record) => {
      found.start = record.committedId;
      return true;
    },
    (events) => found.events.push(...events.map((each) => each.committedId)),
  );
  return { ...found, row };
}

for (const [kind, make] of Object.entries(KINDS)) {
  const open = async (t) => {
    const store = await make(t);
    return async () => {
      const log = new EventLog(store(), "ann");
      await log.open();
      return log;
    };
  };

  test(`${kind}: drafts keep their order and their clock over a restart`, async (t) => {
    const reopen = await open(t);
    let log = await reopen();
    await log.addDrafts([draft("b"), draft("a")]);
    await assert.rejects(log.addDrafts([draft("a")]));
    await log.close();
    log = await reopen();
    const change = await log.addDrafts([draft("c")]);
    assert.equal(change.drafts[0].draftClock, 3);
    const { drafts, notes } = await log.load();
    assert.deepEqual(drafts.map((each) => [each.id, each.draftClock]), [["b", 1], ["a", 2], ["c", 3]]);
    assert.equal(notes.revision, 2);
    await log.close();
  });

  test(`${kind}: a page, its cursor and what it settles are one transaction`, async (t) => {
    const reopen = await open(t);
    let log = await reopen();
    await log.addDrafts([draft("mine"), draft("bad")]);
    const rows = new Map([["p", await log.follow("p", LABEL)], ["q", await log.follow("q", LABEL)]]);
    const accepted = [{ id: "mine", committedId: 3, statusUpdatedAt: 7 }];
    const refused = [{ id: "bad", reason: "validation_failed", errors: [{ field: "event", message: "no" }], statusUpdatedAt: 8 }];
    const change = await log.apply(
      [applying({ events: [event(1), event(2, ["p", "q"])], accepted, refused, cursors: new Map([["p", 3]]) })],
      rows,
      LABEL,
    );
    assert.deepEqual(change.settled, [{ id: "mine", committedId: 3, statusUpdatedAt: 7 }]);
    assert.deepEqual(change.rejected.map((each) => [each.id, each.reason]), [["bad", "validation_failed"]]);
    const before = await contents(log, "p");
    for (const row of change.rows) rows.set(row.name, row);
    await assert.rejects(log.apply([applying({ events: [event(4), event(3)], cursors: new Map([["p", 9]]) })], rows, LABEL), /mine/);
    await assert.rejects(log.apply([applying({ events: [event(5, ["p"], "e2")] })], rows, LABEL), /e2/);
    assert.deepEqual(await contents(log, "p"), before);
    await log.close();
    log = await reopen();
    assert.deepEqual(await contents(log, "p"), { start: null, events: [1, 2, 3], row: { name: "p", cursor: 3, known: 3, floor: 0 } });
    assert.deepEqual((await contents(log, "q")).events, [2]);
    const { drafts } = await log.load();
    assert.deepEqual(drafts.map((each) => [each.id, each.reason]), [["bad", "validation_failed"]]);
    await log.leave("p");
    assert.deepEqual((await contents(log, "q")).events, [2]);
    assert.equal((await contents(log, "p")).row, undefined);
    assert.deepEqual(await log.settled(["e1", "e2"]).then((all) => all.map((each) => each.id)), ["e2"]);
    await log.close();
  });

  test(`${kind}: a base replaces the events up to it, and a reset everything but drafts`, async (t) => {
    const reopen = await open(t);
    const log = await reopen();
    await log.addDrafts([draft("mine")]);
    const rows = new Map([["p", await log.follow("p", LABEL)]]);
    const take = async (...effects) => {
      const change = await log.apply(effects, rows, LABEL);
      for (const row of change.rows) rows.set(row.name, row);
      return change;
    };
    await take(applying({ events: [event(1), event(8)] }));
    const starts = new Map([["p", { committedId: 5, state: { a: 1 } }]]);
    const change = await take(applying({ events: [event(3), event(6)], starts, cursors: new Map([["p", 8]]) }));
    assert.deepEqual(change.rebuild, ["p"]);
    assert.deepEqual(await contents(log, "p"), { start: 5, events: [6, 8], row: { name: "p", cursor: 8, known: 8, floor: 5 } });
    await log.putSnapshot({ partition: "p", committedId: 7, label: LABEL, state: "{}" });
    assert.equal((await contents(log, "p")).start, 7);
    await take(applying({ events: [event(7)] }));
    assert.equal((await contents(log, "p")).start, 5, "a late event takes the snapshot away");
    assert.equal((await log.follow("p", "another model")).cursor, 0);
    await take({ kind: "Rewind", version: 2, digest: "d" });
    assert.equal(rows.get("p").cursor, 0);
    assert.deepEqual((await contents(log, "p")).events, [6, 7, 8]);
    assert.equal((await take({ kind: "Reset", log: { logId: "l", logEpoch: 2 } })).rebuild, null);
    assert.deepEqual(await contents(log, "p"), { start: null, events: [], row: { name: "p", cursor: 0, known: 0, floor: 0 } });
    const { notes, drafts } = await log.load();
    assert.deepEqual([notes.model, notes.log], [{ version: 2, digest: "d" }, { logId: "l", logEpoch: 2 }]);
    assert.equal(drafts.length, 1);
    await log.close();
  });
}

test("a file belongs to one client_id and one process", async (t) => {
  const again = await KINDS.file(t);
  const log = new EventLog(again(), "ann");
  await log.open();
  await assert.rejects(new EventLog(again(), "ann").open(), StoreInUse);
  await log.close();
  await assert.rejects(new EventLog(again(), "bob").open(), StoreForeign);
});

test("the lock of a process that is gone is taken over, whatever is left of it", async (t) => {
  const again = await KINDS.file(t);
  const { path } = again();
  for (const left of ["", "999999999 5", `${process.pid} 1`, "1 1"]) {
    await writeFile(`${path}.lock`, left);
    const log = new EventLog(again(), "ann");
    await log.open();
    await assert.rejects(new EventLog(again(), "ann").open(), StoreInUse);
    await log.close();
  }
  await writeFile(`${path}.lock`, `${process.ppid} 0`);
  await assert.rejects(new EventLog(again(), "ann").open(), StoreInUse);
});

test("a file that was cut off keeps what was acknowledged, and a damaged one says so", async (t) => {
  const again = await KINDS.file(t);
  const store = again();
  const { path } = store;
  let log = new EventLog(store, "ann");
  await log.open();
  await log.addDrafts([draft("a")]);
  const whole = await readFile(path, "utf8");
  await log.close();
  await appendFile(path, "0badc0de[{\"table\"");
  log = new EventLog(again(), "ann");
  await log.open();
  assert.deepEqual((await log.load()).drafts.map((each) => each.id), ["a"]);
  await log.close();
  assert.ok(!(await readFile(path, "utf8")).includes("0badc0de"));
  await writeFile(path, whole.replace('"ann"', '"zoe"'));
  await assert.rejects(new EventLog(again(), "ann").open(), StoreError);
});

test("a write that fails in the middle leaves the file as it was", async (t) => {
  const again = await KINDS.file(t);
  const store = again();
  let log = new EventLog(store, "ann");
  await log.open();
  await log.addDrafts([draft("a")]);
  const before = await readFile(store.path, "utf8");
  const { appendFile: real } = FileHandle.prototype;
  FileHandle.prototype.appendFile = async function (line) {
    await real.call(this, line.slice(0, 20));
    throw Object.assign(new Error("no space left"), { code: "ENOSPC" });
  };
  t.after(() => (FileHandle.prototype.appendFile = real));
  await assert.rejects(log.addDrafts([draft("b")]), /no space/);
  FileHandle.prototype.appendFile = real;
  assert.equal(await readFile(store.path, "utf8"), before);
  await log.addDrafts([draft("c")]);
  await log.close();
  log = new EventLog(again(), "ann");
  await log.open();
  assert.deepEqual((await log.load()).drafts.map((each) => [each.id, each.draftClock]), [["a", 1], ["c", 2]]);
  await log.close();
});

test("a file is written anew when most of it is out of date", async (t) => {
  const again = await KINDS.file(t);
  const store = again();
  const log = new EventLog(store, "ann");
  await log.open();
  await log.follow("p", LABEL);
  const state = "x".repeat(100_000);
  await log.apply([applying({ cursors: new Map([["p", 9]]) })], new Map([["p", { name: "p", cursor: 0, known: 0, floor: 0 }]]), LABEL);
  for (let n = 0; n < 60; n += 1) await log.putSnapshot({ partition: "p", committedId: 1, label: LABEL, state: state + n });
  assert.ok((await stat(store.path)).size < 4_500_000);
  await log.close();
});
