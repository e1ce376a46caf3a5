import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { eventModel, eventUndo, InvalidEvent, UndoRefused } from "../dist/node.js";
import { caughtUp, client, PATIENCE_MS, started, unique, until } from "./support.mjs";

const reducers = JSON.parse(await readFile(process.env.UNISONO_REDUCERS, "utf8"));
const version = 1;
const digest = process.env.UNISONO_DIGEST;
const model = eventModel({ name: "board", version, digest, reducers });
const card = (id) => ({ id, list: "todo", rank: 1, title: id });

test("events of a model mean the same here and on the server", async (t) => {
  const part = unique("board");
  const [ann, bob] = [client(unique("ann"), [part], { model }), client(unique("bob"), [part], { model })];
  await started(t, ann, bob);
  await caughtUp(ann, bob);
  await ann.event("card.added", card("__proto__"));
  await ann.event("card.voted", { id: "__proto__", votes: 3 });
  await assert.rejects(ann.event("card.added", card("__proto__")), (error) => {
    assert.ok(error instanceof InvalidEvent);
    assert.deepEqual(error.errors, [{ field: "event.payload.data.id", message: "there is already a card of this id" }]);
    return true;
  });
  await caughtUp(ann);
  await until(() => JSON.stringify(bob.view()) === JSON.stringify(ann.view()));
  assert.equal(JSON.stringify(bob.view()), '{"cards":{"__proto__":{"list":"todo","rank":1,"title":"__proto__","done":false,"votes":3}}}');
  const bad = await ann.event("card.added", { id: "c" });
  const outcome = await bad.settled({ timeoutMs: PATIENCE_MS });
  assert.equal(outcome.reason, "validation_failed", "what a JSON Schema refuses, the server refuses");
  assert.equal(ann.getStatus().modelVersion, version);
  assert.equal(ann.getStatus().lastError, null);
});

test("events are taken back as the model declares", async (t) => {
  const part = unique("board");
  const [ann, bob] = [
    client(unique("ann"), [part], { model, extensions: [eventUndo()] }),
    client(unique("bob"), [part], { model }),
  ];
  await started(t, ann, bob);
  await caughtUp(ann, bob);
  const views = [ann.view()];
  for (const [schema, data] of [
    ["card.added", card("a")],
    ["card.edited", { id: "a", title: "A", rank: 2 }],
    ["card.voted", { id: "a", votes: 3 }],
  ]) {
    await ann.event(schema, data);
    views.push(ann.view());
  }
  await caughtUp(ann);
  for (const before of views.slice(1, -1).reverse()) {
    for (const draft of await ann.undo()) assert.equal((await draft.settled({ timeoutMs: PATIENCE_MS })).status, "committed");
    assert.deepEqual(ann.view(), before);
  }
  await until(() => bob.view().cards?.a?.title === "a");
  await bob.event("card.voted", { id: "a" });
  await until(() => ann.view().cards.a.votes === 1);
  await assert.rejects(ann.undo(), (error) => error instanceof UndoRefused && error.reason === "changed");
  await ann.event("list.added", { id: "todo", name: "To do" });
  await assert.rejects(ann.undo(), (error) => error.reason === "no_inverse");
});

test("functions stand beside declared reducers", async (t) => {
  const { "board.renamed": _, ...others } = reducers;
  const functions = { "board.renamed": (state, { data }) => ({ ...state, title: data.title }) };
  const part = unique("board");
  const mixed = eventModel({ name: "board", version, digest, reducers: others, functions });
  const ann = client(unique("ann"), [part], { model: mixed });
  const bob = client(unique("bob"), [part], { model });
  await started(t, ann, bob);
  await caughtUp(ann, bob);
  await bob.event("board.renamed", { title: "Ours" });
  await ann.event("card.added", card("a"));
  await ann.event("board.renamed", { title: "Mine" });
  await bob.event("card.added", card("b"));
  await caughtUp(ann, bob);
  await until(() => Object.keys(ann.view().cards ?? {}).length === 2 && Object.keys(bob.view().cards ?? {}).length === 2);
  await until(() => ann.view().title === bob.view().title);
  assert.deepEqual(ann.view(), bob.view());
});

test("a model of another version is reported", async (t) => {
  const other = eventModel({ name: "board", version: 7, reducers });
  const problems = [];
  const ann = client(unique("ann"), [unique("board")], {
    model: other,
    onEvent: (event) => event.type === "problem" && problems.push(event.code),
  });
  await started(t, ann);
  await caughtUp(ann);
  assert.ok(problems.includes("model_mismatch"), problems);
});
