// Two programs share an outline: node examples/garden.mjs ws://127.0.0.1:8040/sync TOKEN_OF_ANN TOKEN_OF_BOB

import { createFileStore, createMemoryStore, createSyncClient, treeModel } from "@unisono/client/node";
import WebSocket from "ws";

const [url, annToken, bobToken, partition = "garden"] = process.argv.slice(2);

const ann = createSyncClient({
  url,
  clientId: "ann",
  token: async () => annToken, // asked again before the last one ends
  model: treeModel(), // tree actions; eventModel({ reducers }) for the events of a model
  store: createFileStore("ann.store"), // in a browser: createIndexedDbStore()
  partitions: [partition],
  WebSocket, // where there is no global one, as in Node 20
});
await ann.start(); // opens the store and shows what is in it, online or not

const outline = ann.tree("outline");
const draft = await outline.push({ id: "beds", title: "Raised beds" });
await outline.push({ id: "beans", title: "Beans" }, { parent: "beds" });
console.log(ann.view(partition).outline.items.beans); // at once: { title: 'Beans' }

const outcome = await draft.settled({ timeoutMs: 10_000 });
if (outcome.status === "committed") console.log("in the one order at", outcome.committedId > 0);
else console.log("refused:", outcome.reason, outcome.errors);

const bob = createSyncClient({
  url,
  clientId: "bob",
  token: bobToken,
  model: treeModel(),
  store: createMemoryStore(),
  partitions: [partition],
  WebSocket,
  onEvent: (event) => {
    if (event.type === "problem") console.log(event.code, event.message);
  },
});
await bob.start();
bob.on("change", ({ partition: name }) => console.log("bob sees", Object.keys(bob.view(name).outline.items)));
await bob.caughtUp({ timeoutMs: 10_000 });

ann.pause(); // offline: everything goes on, and drafts wait
await outline.push({ id: "peas", title: "Peas" });
console.log(ann.getStatus().pending, "draft waits");
ann.resume();
await ann.caughtUp({ timeoutMs: 10_000 });

await Promise.all([ann.stop(), bob.stop()]);
