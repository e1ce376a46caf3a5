// Clients in a process of their own, told what to do line by line: {"n": 1, "member": "ann", "call": "submit", …} on
// stdin is answered by {"n": 1, "result": …} or {"n": 1, "error": …} on stdout.

import { createInterface } from "node:readline";
import WebSocket from "ws";
import { createFileStore, createSyncClient, history, InvalidEvent, transactions, treeModel, treeUndo, UndoRefused } from "../dist/node.js";
import { QUICK, PATIENCE_MS } from "./support.mjs";

const members = new Map();

const CALLS = {
  async open(_, { member, url, token, path, partitions, options }) {
    const client = createSyncClient({
      url,
      clientId: member,
      token,
      model: treeModel(),
      store: createFileStore(path),
      partitions,
      WebSocket,
      extensions: [history(), transactions(), treeUndo()],
      options: { ...QUICK, ...options },
    });
    await client.start();
    members.set(member, client);
    return null;
  },
  async submit(client, { event, partitions }) {
    try {
      return (await client.submitEvent({ event, partitions })).id;
    } catch (error) {
      if (error instanceof InvalidEvent) return null;
      throw error;
    }
  },
  async undo(client) {
    try {
      return (await client.undo()).map((draft) => draft.id);
    } catch (error) {
      if (error instanceof UndoRefused) return error.reason;
      throw error;
    }
  },
  history: async (client, { partition, ...bounds }) => {
    const { events, nextBefore } = await client.history(partition, bounds);
    return { ids: events.map((each) => each.committedId), next: nextBefore };
  },
  view: (client, { partition }) => client.view(partition),
  pause: (client) => client.pause() ?? null,
  resume: (client) => client.resume() ?? null,
  status: (client) => client.getStatus(),
  rejected: (client) => client.rejected().map((draft) => draft.id),
  caughtUp: async (client) => (await client.caughtUp({ timeoutMs: PATIENCE_MS })) ?? null,
  async close(client, { member }) {
    await client.stop();
    members.delete(member);
    return null;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  void Promise.resolve()
    .then(() => CALLS[request.call](members.get(request.member), request))
    .then(
      (result) => console.log(JSON.stringify({ n: request.n, result: result ?? null })),
      (error) => console.log(JSON.stringify({ n: request.n, error: String(error.stack) })),
    );
}
process.exit(0);
