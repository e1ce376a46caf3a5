import assert from "node:assert/strict";
import { test } from "node:test";
import { InvalidEvent, presence } from "../dist/node.js";
import { caughtUp, client, control, started, token, unique, until } from "./support.mjs";

const here = (clientId, part, more = {}) => client(clientId, [part], { extensions: [presence()], ...more });
const values = (who) => Object.fromEntries(who.presence().others.map((each) => [each.clientId, each.value]));
const shows = (who, expected) => until(() => {
  try {
    assert.deepEqual(values(who), expected);
    return true;
  } catch {
    return false;
  }
}, `expected ${JSON.stringify(expected)}, shown: ${JSON.stringify(values(who))}`);

test("clients see each other, the last value counts, and offline nobody is there", async (t) => {
  const [part, a, b] = [unique("p"), unique("ann"), unique("ben")];
  const ann = here(a, part, { token: () => token(a, 3600, { sub: "ann" }) });
  const ben = here(b, part);
  ann.presence(part).set("before the start");
  await started(t, ann, ben);
  await caughtUp(ann, ben);
  await shows(ben, { [a]: "before the start" });
  const heard = [];
  ben.on("presence", ({ partition }) => heard.push(partition));
  for (let place = 0; place < 50; place += 1) ann.presence().set({ pointer: place });
  await shows(ben, { [a]: { pointer: 49 } });
  assert.equal(ben.presence().others[0].userId, "ann");
  assert.equal(ben.presence().others, ben.presence(part).others, "the same list until it changes");
  assert.deepEqual(new Set(heard), new Set([part]));
  assert.deepEqual(values(ann), {});
  ann.pause();
  await shows(ben, {});
  ann.presence().set("offline");
  ann.resume();
  await shows(ben, { [a]: "offline" });
  ben.presence().set(1);
  await shows(ann, { [b]: 1 });
  ben.pause();
  await shows(ben, {});
  ben.resume();
  await shows(ben, { [a]: "offline" });
  ann.presence().clear();
  await shows(ben, {});
  ann.presence().set(2);
  await shows(ben, { [a]: 2 });
  await ann.stop();
  await shows(ben, {});
});

test("a server that is killed and started again has everybody again", async (t) => {
  const [part, a, b] = [unique("p"), unique("ann"), unique("ben")];
  const [ann, ben] = [here(a, part), here(b, part)];
  await started(t, ann, ben);
  ann.presence().set({ name: "Ann" });
  await shows(ben, { [a]: { name: "Ann" } });
  await control("kill");
  await shows(ben, {});
  await control("start");
  await shows(ben, { [a]: { name: "Ann" } });
});

test("what cannot be said is refused at once, or reported", async (t) => {
  const [part, a, b] = [unique("p"), unique("ann"), unique("ben")];
  const [ann, ben] = [here(a, part), here(b, part)];
  await started(t, ann, ben);
  await caughtUp(ann, ben);
  for (const value of ["x".repeat(5000), NaN, undefined, { a: 1n }]) {
    assert.throws(() => ann.presence().set(value), InvalidEvent);
  }
  const problems = [];
  ann.on("problem", ({ code }) => problems.push(code));
  ann.presence().set("fits");
  await shows(ben, { [a]: "fits" });
  ann.presence().set("x".repeat(2000)); // this server takes 1024 bytes
  await until(() => problems.length);
  assert.deepEqual(problems, ["presence_too_large"]);
  await shows(ben, {});
  const draft = await ann.set("a", 1);
  assert.equal((await draft.settled()).status, "committed");
});

test("presence is switched on by an extension, one for each client", async (t) => {
  const plain = client(unique("zoe"), [unique("p")]);
  await started(t, plain);
  assert.throws(() => plain.presence(), /extensions: \[presence\(\)\]/);
  const shared = [presence()];
  const first = client(unique("a"), [unique("p")], { extensions: shared });
  await started(t, first);
  const second = client(unique("b"), [unique("p")], { extensions: shared });
  await assert.rejects(second.start(), /belongs to one client/);
});
