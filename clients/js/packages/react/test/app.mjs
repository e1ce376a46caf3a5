// A page that shows what the hooks give, as text.

import { createIndexedDbStore, createSyncClient, history, presence, treeModel, treeUndo } from "@unisono/client";
import { SyncProvider, useHistory, usePending, usePresence, useRejected, useStatus, useUndo, useView } from "@unisono/react";
import { createElement as h, useState } from "react";
import { createRoot } from "react-dom/client";

function Cursor({ partition, place }) {
  const others = usePresence(partition, { place });
  return h("p", { id: "others" }, others.map(({ value }) => value.place).join());
}

function App({ partition }) {
  const [renders, setRenders] = useState(0);
  const view = useView(partition);
  const { undoable, redoable, undo, redo } = useUndo(partition);
  const past = useHistory(partition, 2);
  const line = (id, text) => h("p", { id, key: id }, text);
  return h("div", null, [
    line("view", JSON.stringify(view ?? "nothing")),
    line("pending", usePending().map((draft) => draft.event.type).join()),
    line("rejected", useRejected().map((draft) => draft.reason).join()),
    line("phase", useStatus().phase),
    line("past", past?.events.map(({ event }) => event.type).join() ?? "nothing"),
    h("button", { id: "undo", key: "undo", onClick: undo }, undoable?.type ?? ""),
    h("button", { id: "redo", key: "redo", onClick: redo }, redoable?.type ?? ""),
    renders < 2 && h(Cursor, { key: "cursor", partition, place: renders }),
    h("button", { id: "again", key: "again", onClick: () => setRenders(renders + 1) }, String(renders)),
  ]);
}

window.open_client = async ({ url, clientId, token, partition }) => {
  const client = createSyncClient({
    url,
    clientId,
    token: () => token,
    model: treeModel(),
    store: createIndexedDbStore(),
    partitions: [partition],
    extensions: [presence(), history(), treeUndo()],
  });
  window.client = client;
  const root = document.body.appendChild(document.createElement("div"));
  createRoot(root).render(h(SyncProvider, { client }, h(App, { partition })));
  await client.start();
};
