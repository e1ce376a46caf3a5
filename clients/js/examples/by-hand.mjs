// The protocol without a library: node examples/by-hand.mjs ws://127.0.0.1:8040/sync CLIENT_ID TOKEN PARTITION

import WebSocket from "ws"; // a browser and Node 22 have one of their own

const [url, clientId, token, partition] = process.argv.slice(2);
const socket = new WebSocket(url);
let number = 0;

function send(type, payload) {
  number += 1;
  const message = { type, msg_id: `m${number}`, timestamp: Date.now(), protocol_version: "1.0", payload };
  socket.send(JSON.stringify(message));
}

socket.onopen = () =>
  send("connect", { token, client_id: clientId, supported_profiles: ["compatibility"] });

socket.onmessage = ({ data }) => {
  const { type, payload } = JSON.parse(data);
  if (type === "connected") {
    setInterval(() => send("heartbeat", {}), 10_000).unref();
    send("sync", { partitions: [partition], subscription_partitions: [partition], since_committed_id: 0 });
  } else if (type === "sync_response") {
    for (const event of payload.events) console.log(event.committed_id, event.event.type);
    if (payload.has_more) {
      send("sync", { partitions: [partition], since_committed_id: payload.next_since_committed_id });
    } else {
      const event = { type: "set", payload: { target: "greeting", value: "hello" } };
      send("submit_events", { events: [{ id: crypto.randomUUID(), partitions: [partition], event }] });
    }
  } else if (type === "submit_events_result") {
    console.log(payload.results[0].status);
    send("disconnect", {});
  } else if (type === "event_broadcast") {
    console.log(payload.committed_id, payload.event.type);
  } else if (type === "error") {
    console.log(payload.code, payload.message);
  }
};
