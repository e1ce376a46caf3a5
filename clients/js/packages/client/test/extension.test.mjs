import assert from "node:assert/strict";
import { test } from "node:test";
import { caughtUp, client, peer, started, until } from "./support.mjs";

test("an extension adds to connect, sends, and hears its messages alone", async (t) => {
  const { url, heard } = await peer(t, {
    wave: (payload, say) => {
      say("waved", { back: payload.hand });
      say("nobody_knows", {});
    },
  });
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
