import assert from "node:assert/strict";
import { test } from "node:test";
import { createMemoryStore, treeUndo, UndoRefused } from "../dist/node.js";
import { caughtUp, client, PATIENCE_MS, started, unique, until } from "./support.mjs";

const UNDO = () => ({ extensions: [treeUndo()] });
const OFFLINE = { url: "ws://127.0.0.1:9/sync" };
const settled = (drafts) => Promise.all(drafts.map((draft) => draft.settled({ timeoutMs: PATIENCE_MS })));
const refused = (doing, reason) =>
  assert.rejects(doing, (error) => error instanceof UndoRefused && error.message && assert.equal(error.reason, reason) === undefined);

test("undo and redo are ordinary events", async (t) => {
  const part = unique("p");
  const [ann, ben] = [client(unique("ann"), [part], UNDO()), client(unique("ben"), [part], UNDO())];
  await started(t, ann, ben);
  await caughtUp(ann, ben);
  const views = [ann.view()];
  const outline = ann.tree("outline");
  for (const step of [
    () => outline.push({ id: "a", title: "A" }),
    () => outline.push({ id: "b", title: "B" }, { parent: "a" }),
    () => outline.update("a", { title: "AA" }),
    () => outline.move("b", { parent: "_root" }),
    () => ann.set("settings.theme", "dark"),
    () => outline.delete("a"),
  ]) {
    await step();
    views.push(ann.view());
  }
  await caughtUp(ann);
  assert.equal(ann.undoable().type, "treeDelete");
  for (const before of views.slice(0, -1).reverse()) {
    const drafts = await ann.undo();
    assert.deepEqual(ann.view(), before);
    for (const { status } of await settled(drafts)) assert.equal(status, "committed");
  }
  assert.equal(ann.undoable(), null);
  await refused(ann.undo(), "nothing");
  for (const after of views.slice(1)) {
    const [draft] = await ann.redo(part);
    assert.deepEqual(ann.view(), after);
    await draft.settled();
  }
  await refused(ann.redo(), "nothing");
  await until(() => JSON.stringify(ben.view()) === JSON.stringify(ann.view()));
  assert.equal((await ben.history(part)).events.length, 6 + 6 + 6);
  await refused(ben.undo(), "nothing"); // what others did is theirs
});

test("calls that do not wait for each other take one step after the other back", async (t) => {
  const ann = client(unique("ann"), ["p"], { ...OFFLINE, ...UNDO() });
  await started(t, ann);
  for (let n = 0; n < 6; n += 1) await ann.set("n", n);
  await Promise.all([ann.undo(), ann.undo(), ann.undo()]);
  assert.deepEqual(ann.view(), { n: 2 });
  await Promise.all([ann.redo(), ann.redo()]);
  assert.deepEqual(ann.view(), { n: 4 });
});

test("drafts are taken back offline and go out in order", async (t) => {
  const [part, who, store] = [unique("p"), unique("ann"), createMemoryStore()];
  const ann = client(who, [part], { store, ...OFFLINE, ...UNDO() });
  await ann.start();
  await ann.set("theme", "dark");
  await ann.tree("outline").push({ id: "a" });
  assert.deepEqual((await ann.undo()).map((draft) => draft.event.type), ["unset"]);
  assert.deepEqual(ann.view(), { theme: "dark" });
  await ann.redo();
  await ann.undo();
  await ann.set("theme", "light");
  assert.equal(ann.redoable(), null); // what is new ends redo
  assert.equal(ann.pending().length, 6);
  await ann.stop();
  const again = client(who, [part], { store, ...UNDO() });
  await started(t, again);
  await caughtUp(again);
  assert.deepEqual([again.view(), again.rejected()], [{ theme: "light" }, []]);
  await refused(again.undo(), "nothing"); // of this run
});

test("what cannot be taken back says why", async (t) => {
  const [part, other] = [unique("p"), unique("q")];
  const [ann, ben] = [client(unique("ann"), [part, other], UNDO()), client(unique("ben"), [part])];
  await started(t, ann, ben);
  await caughtUp(ann, ben);
  await ann.set("size", 1, { partition: part });
  await ann.set("theme", "dark", { partition: part });
  await caughtUp(ann);
  await until(() => ben.view().theme === "dark");
  await ben.set("theme", "blue");
  await until(() => ann.view(part).theme === "blue");
  await refused(ann.undo(), "changed");
  await settled(await ann.undo()); // the one before it
  assert.deepEqual(ann.view(part), { theme: "blue" });
  await ben.set("size", 7);
  await until(() => ann.view(part).size === 7);
  await refused(ann.redo(), "changed");
  await ann.set("a", 1, { partition: part });
  await ann.set("b", 2, { partition: other });
  await ann.undo(part);
  assert.deepEqual([ann.view(part), ann.undoable(part)], [{ size: 7, theme: "blue" }, null]);
  assert.equal(ann.undoable(other).payload.target, "b");
  await ann.removePartition(other);
  await refused(ann.undo(), "gone");
  await ann.set("z", 1, { partition: part });
  await ann.unset("never", { partition: part }); // changes nothing: no step
  await ann.undo();
  assert.deepEqual(ann.view(part), { size: 7, theme: "blue" });
});

test("an event is taken back to what others did before it", async (t) => {
  const part = unique("p");
  const [ann, ben] = [client(unique("ann"), [part], UNDO()), client(unique("ben"), [part])];
  await started(t, ann, ben);
  await caughtUp(ann, ben);
  ann.pause();
  await (await ben.tree("outline").push({ id: "x" })).settled();
  const late = await ann.tree("outline").push({ id: "x" });
  ann.resume();
  assert.equal((await late.settled({ timeoutMs: PATIENCE_MS })).status, "rejected");
  await refused(ann.undo(), "rejected");
  await ann.set("theme", "first");
  await caughtUp(ann);
  await until(() => ben.view().theme === "first");
  ann.pause();
  await (await ben.set("theme", "second")).settled();
  await ann.set("theme", "third");
  ann.resume();
  await caughtUp(ann);
  await settled(await ann.undo());
  assert.equal(ann.view().theme, "second");
});

test("only so many steps are kept, and those of a transaction are taken back one by one", async (t) => {
  const ann = client(unique("ann"), ["p"], { ...OFFLINE, ...UNDO() });
  await started(t, ann);
  for (let n = 0; n < 105; n += 1) await ann.set("n", n);
  for (let n = 0; n < 100; n += 1) await ann.undo();
  await refused(ann.undo(), "nothing");
  assert.deepEqual(ann.view(), { n: 4 });
  const put = (target) => ({ event: { type: "set", payload: { target, value: 1 } } });
  await ann.transaction([put("a"), put("b")]);
  await ann.undo();
  assert.deepEqual(ann.view(), { n: 4, a: 1 });
  await ann.undo();
  assert.deepEqual(ann.view(), { n: 4 });
});
