import assert from "node:assert/strict";
import { test } from "node:test";
import { WebSocketServer } from "ws";
import { caughtUp, client, started, until } from "./support.mjs";

/** A server that follows the protocol far enough, and has a message of its own. */
async function peer(t) {
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
  await new Promise((resolve) => server.once("listening", resolve));
  t.after(() => server.close());
  const heard = [];
  server.on("connection", (socket) => {
    const say = (type, payload) =>
      socket.send(JSON.stringify({ type, msg_id: "s", timestamp: 1, protocol_version: "1.0", payload }));
    socket.on("message", (data) => {
      const { type, payload } = JSON.parse(data);
      heard.push([type, payload]);
      if (type === "connect") {
        say("connected", { client_id: payload.client_id, capabilities: { profile: "compatibility", tree_policy: "strict" } });
      } else if (type === "sync") {
        say("sync_response", { events: [], next_since_committed_id: 0, sync_to_committed_id: 0, has_more: false });
      } else if (type === "wave") {
        say("waved", { back: payload.hand });
        say("nobody_knows", {});
      }
    });
  });
  return { url: `ws://127.0.0.1:${server.address().port}/`, heard };
}

test("an extension adds to connect, sends, and hears its messages alone", async (t) => {
  const { url, heard } = await peer(t);
  const seen = [];
  const extension = {
    name: "waving",
    types: ["waved"],
    connect: () => ({ waving: 1 }),
    connected: (payload, send) => {
      seen.push(["connected", payload.client_id]);
      send("wave", { hand: "left" });
    },
    message: (type, payload) => seen.push([type, payload]),
    lost: () => seen.push(["lost"]),
  };
  const ann = client("ann", ["p"], { url, extensions: [extension] });
  await started(t, ann);
  await caughtUp(ann);
  await until(() => seen.length === 2);
  assert.equal(heard[0][1].waving, 1);
  assert.deepEqual(seen, [["connected", "ann"], ["waved", { back: "left" }]]);
  ann.pause();
  await until(() => seen.at(-1)[0] === "lost");
});
