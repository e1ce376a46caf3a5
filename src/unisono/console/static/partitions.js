// Partitions by the beginning of their name.

import { get } from "/console/api.js";
import { data, h, put, table } from "/console/dom.js";
import { bytes, count } from "/console/format.js";
import { partitionLink } from "/console/log.js";

export function partitionsPage(root, { signal, setTrouble }) {
  const prefix = h("input", { id: "prefix", autocomplete: "off", spellcheck: false });
  const list = h("div", { "aria-live": "polite" });
  const more = h("button", { type: "button", hidden: true, onclick: () => load(true) }, "More partitions");
  const form = h(
    "form",
    { class: "filters", onsubmit: (event) => (event.preventDefault(), load(false)) },
    h("div", { class: "field" }, h("label", { htmlFor: "prefix" }, "Name begins with"), prefix),
    h("button", { type: "submit" }, "Find"),
  );
  put(root, form, list, h("p", {}, more));
  let last = "";
  let rows = null;

  async function load(onward) {
    try {
      const found = await get("partitions", { prefix: prefix.value, after: onward ? last : "" }, signal);
      if (!onward) {
        rows = h("tbody", {});
        const columns = ["Partition", "Events in the log", "Last id", "Subscribers", "Snapshot at", "Snapshot size"];
        const made = table("Partitions", columns, []);
        made.querySelector("tbody").replaceWith(rows);
        put(list, found.partitions.length ? made : h("p", {}, "There is no partition of this name."));
      }
      rows.append(...found.partitions.map(row));
      last = found.partitions.at(-1)?.name ?? last;
      more.hidden = !found.more;
      setTrouble(null);
    } catch (error) {
      if (!signal.aborted) setTrouble(error.message);
    }
  }

  load(false);
}

function row(partition) {
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("a", { href: partitionLink(partition.name) }, data(partition.name))),
    h("td", { class: "number" }, count(partition.events) + (partition.more ? " or more" : "")),
    h("td", { class: "number" }, partition.last ? count(partition.last) : "–"),
    h("td", { class: "number" }, count(partition.subscribers)),
    h("td", { class: "number" }, count(partition.snapshot)),
    h("td", { class: "number" }, bytes(partition.snapshot_bytes)),
  );
}
