// Who is connected, and the way to end a connection.

import { get, post } from "/console/api.js";
import { data, h, openDialog, put, table } from "/console/dom.js";
import { bytes, count, moment, plural } from "/console/format.js";

const EVERY_MS = 3000;
const COLUMNS = ["Client", "User", "Node", "Profile", "Subscriptions", "Waiting for judgement", "Unsent", "Token ends", "Action"];

export function connectionsPage(root, { every, signal, setTrouble }) {
  const filter = h("input", { id: "who", autocomplete: "off", spellcheck: false });
  const note = h("p", { class: "quiet", role: "status" });
  const made = table("Connections", COLUMNS, []);
  const rows = made.querySelector("tbody");
  const silent = h("p", { class: "warning", role: "status" });
  put(root, h("div", { class: "filters" }, h("div", { class: "field" }, h("label", { htmlFor: "who" }, "Client or user contains"), filter)), note, silent, made);
  let found = { connections: [], silent_nodes: [], bound_bytes: 0 };

  function show() {
    const wanted = filter.value.trim().toLowerCase();
    const some = found.connections.filter((each) => `${each.client_id ?? ""} ${each.user_id ?? ""}`.toLowerCase().includes(wanted));
    note.textContent = `${count(some.length)} of ${plural(found.connections.length, ["connection", "connections"])}${found.connections.length >= 1000 ? " (the first 1,000)" : ""}`;
    silent.textContent = found.silent_nodes.length
      ? `No answer within a second from ${found.silent_nodes.join(", ")}: of their connections only the names of clients are known.`
      : "";
    const focused = rows.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    put(rows, some.map((each) => row(each, found.bound_bytes, kick)));
    if (focused !== null) {
      const same = [...rows.querySelectorAll("button")].find((button) => button.getAttribute("aria-label") === focused);
      (same ?? filter).focus({ preventScroll: true });
    }
  }

  function kick(kind, name) {
    const minutes = h(
      "select",
      { id: "refuse-for" },
      [["0", "not at all: it may come back at once"], ["60", "one minute"], ["600", "ten minutes"], ["3600", "one hour"], ["86400", "one day"]].map(([value, label]) =>
        h("option", { value }, label),
      ),
    );
    const problem = h("p", { role: "alert" });
    const confirm = h(
      "button",
      {
        type: "button",
        class: "danger",
        onclick: async () => {
          confirm.disabled = true;
          try {
            await post("kick", { kind, name, for_s: Number(minutes.value) });
            dialog.close();
            tick();
          } catch (error) {
            problem.textContent = error.message;
            confirm.disabled = false;
          }
        },
      },
      "End its connections",
    );
    const dialog = openDialog(
      `Kick ${kind}`,
      h("p", {}, "Ends every connection of this ", kind, " on all nodes: ", h("strong", {}, data(name)), ". The server's log records it."),
      h("div", { class: "field" }, h("label", { htmlFor: "refuse-for" }, "Refuse it"), minutes),
      problem,
      h("p", {}, confirm),
    );
  }

  filter.addEventListener("input", show);
  const tick = every(EVERY_MS, async () => {
    found = await get("connections", {}, signal);
    show();
  });
}

function row(each, bound, kick) {
  const own = each.subscriptions !== undefined;
  const more = own && each.subscriptions > each.partitions.length ? ` and ${count(each.subscriptions - each.partitions.length)} more` : "";
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, each.client_id === null ? "(not connected yet)" : data(each.client_id)),
    h("td", {}, each.user_id ? data(each.user_id) : "–"),
    h("td", {}, data(each.node)),
    h("td", {}, each.profile ?? "–"),
    h("td", {}, own ? [`${count(each.subscriptions)}`, each.partitions.length ? [": ", data(each.partitions.join(", "))] : null, more, each.lag ? ` · ${count(each.lag)} events behind` : each.syncing ? " · catching up" : null] : "its node does not answer"),
    h("td", { class: "number" }, own ? count(each.in_flight) : "–"),
    h("td", { class: "number" }, own ? `${bytes(each.unsent_bytes)} of ${bytes(bound)}` : "–"),
    h("td", {}, each.expires_at_s ? moment(each.expires_at_s * 1000).slice(0, 19) : "–"),
    h(
      "td",
      {},
      each.client_id ? h("button", { type: "button", onclick: () => kick("client", each.client_id), "aria-label": `Kick client ${each.client_id}` }, "Kick client") : null,
      " ",
      each.user_id ? h("button", { type: "button", onclick: () => kick("user", each.user_id), "aria-label": `Kick user ${each.user_id}` }, "Kick user") : null,
    ),
  );
}
