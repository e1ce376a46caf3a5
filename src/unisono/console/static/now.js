// What the server does at this moment, and did in the last hour.

import { get } from "/console/api.js";
import { chart } from "/console/charts.js";
import { data, h, put } from "/console/dom.js";
import { ago, bytes, count, milliseconds, plural, rate } from "/console/format.js";

const EVERY_MS = 2000;
const NODE_SILENT_S = 60;

function tile(name, value, note, level = "") {
  return h(
    "div",
    { class: `tile ${level}` },
    h("p", { class: "tile-name" }, name),
    h("p", { class: "tile-value" }, value),
    h("p", { class: "tile-note" }, note ?? ""),
  );
}

export function nowPage(root, { every, signal }) {
  const tiles = h("div", { class: "tiles" });
  const traffic = h("div", { class: "chart", role: "img", "aria-label": "Commits, deliveries and refusals per second" });
  const latency = h("div", { class: "chart", role: "img", "aria-label": "Time to commit a group, percentiles" });
  const depths = h("div", { class: "depths" });
  const rest = h("div", {});
  put(
    root,
    tiles,
    h(
      "div",
      { class: "columns" },
      h("section", {}, h("h2", {}, "Events per second"), traffic),
      h("section", {}, h("h2", {}, "Time to commit a group"), latency),
    ),
    h(
      "div",
      { class: "columns" },
      h("section", {}, h("h2", {}, "Queues and their bounds"), depths),
      h("section", {}, h("h2", {}, "Processes and pipeline"), rest),
    ),
  );
  const showTraffic = chart(
    traffic,
    [
      { label: "commits", colour: "--line-1", format: rate },
      { label: "deliveries", colour: "--line-2", format: rate, dash: [6, 3] },
      { label: "refused", colour: "--line-3", format: rate, dash: [2, 3] },
    ],
    signal,
  );
  const showLatency = chart(
    latency,
    [
      { label: "p50", colour: "--line-1", format: milliseconds },
      { label: "p95", colour: "--line-2", format: milliseconds, dash: [6, 3] },
      { label: "p99", colour: "--line-3", format: milliseconds, dash: [2, 3] },
    ],
    signal,
  );

  let series = null; // there is a new sample every few seconds
  let askedAt = 0;
  every(EVERY_MS, async () => {
    const now = await get("now", {}, signal);
    if (series === null || Date.now() - askedAt >= series.every_s * 1000) {
      askedAt = Date.now();
      series = await get("series", {}, signal);
    }
    const { rates } = now;
    const over = "per second";
    put(
      tiles,
      tile("Commits", rate(rates.commits), over),
      tile("Deliveries", rate(rates.broadcasts), over),
      tile("Refused", rate(rates.rejections), over, rates.rejections > 0 ? "warn" : ""),
      tile("Commit p50", milliseconds(rates.p50), "per group"),
      tile("Commit p95", milliseconds(rates.p95), "per group"),
      tile("Commit p99", milliseconds(rates.p99), "per group"),
      tile("Connections", count(now.connections), "on this node"),
      tile("Head of the log", count(now.head), now.store_reachable ? "last committed_id" : "log unavailable", now.store_reachable ? "" : "bad"),
    );
    const times = series.time.map((ms) => ms / 1000);
    showTraffic([times, series.commits, series.broadcasts, series.rejections]);
    showLatency([times, series.p50, series.p95, series.p99]);
    put(depths, now.depths.map(depth));
    put(rest, processes(now), pipeline(now));
  });
}

function depth({ name, value, bound, unit }) {
  const shown = unit === "bytes" ? bytes : count;
  const share = bound ? value / bound : 0;
  const label = bound ? `${shown(value)} of ${shown(bound)}` : `${shown(value)}, no bound of its own`;
  return h(
    "div",
    { class: "depth" },
    h("span", {}, name),
    h("span", { class: "quiet" }, label),
    bound
      ? h("meter", { min: 0, max: 1, low: 0.5, high: 0.8, optimum: 0, value: Math.min(1, share), "aria-label": `${name}: ${label}` })
      : null,
  );
}

function processes(now) {
  return h(
    "p",
    {},
    h("strong", {}, data(now.node)),
    now.ready ? " is ready. " : " is not ready. ",
    h("span", { class: "quiet" }, `Answering: ${now.processes.join(", ")}. `),
    now.store === "shared"
      ? [
          now.nodes === null
            ? h("span", { class: "warning" }, "The nodes of the shared log cannot be listed. ")
            : [`${plural(now.nodes.length, ["node", "nodes"])} on the shared log: `, now.nodes.map((each, at) => [at ? ", " : "", node(each)]), ". "],
          h("span", { class: "quiet" }, "Each has a console of its own; clients of all nodes are under Connections."),
        ]
      : null,
  );
}

function node({ name, seen_s: seen }) {
  const silent = seen > NODE_SILENT_S;
  return h("span", { class: silent ? "warning" : "" }, data(name), silent ? ` (last heard of ${ago(seen * 1000)})` : "");
}

function pipeline({ pipeline: status, head }) {
  if (!status) {
    return h("p", { class: "quiet" }, "No pipeline keeps its status here. ", h("a", { href: "#/pipeline" }, "How to set one up"));
  }
  const audit = status.stages.audit;
  return h(
    "ul",
    { class: "plain" },
    h("li", {}, status.running ? "The pipeline runs" : "The pipeline does not run", `, last heard ${ago(status.age_ms)}.`),
    h("li", {}, `The lake is ${count(Math.max(0, head - status.lake_head))} events behind the log.`),
    h(
      "li",
      {},
      !audit || audit.runs === 0
        ? "No audit has run."
        : audit.error
          ? ["The last audit found something wrong: ", data(audit.error)]
          : `The last good audit was ${ago(Date.now() - audit.last_done_ms)}.`,
    ),
    h("li", {}, h("a", { href: "#/pipeline" }, "Stages of the pipeline")),
  );
}
