// The pipeline beside this server, as its status file describes it.

import { get } from "/console/api.js";
import { data, facts, h, put, table } from "/console/dom.js";
import { ago, count, moment } from "/console/format.js";

const EVERY_MS = 5000;

export function pipelinePage(root, { every, signal }) {
  every(EVERY_MS, async () => {
    const { status, data: directory } = await get("pipeline", {}, signal);
    put(root, status ? shown(status) : setUp(directory));
  });
}

function setUp(directory) {
  return [
    h("p", {}, "No pipeline keeps its status in the server's data directory."),
    h("p", {}, "Start one beside the server; it exports the log into a lake, writes snapshots, audits, and lets old events leave the log:"),
    h("pre", { tabIndex: 0 }, `unisono lake run --data ${directory} --lake DIR`),
    h("p", { class: "quiet" }, "It needs the packages of unisono[pipeline] and a Java runtime. Its stages and figures appear here within seconds."),
  ];
}

function shown(status) {
  return [
    facts([
      ["State", status.running ? "running" : "not running"],
      ["Last heard", ago(status.age_ms)],
      ["Working on", status.at_work ? data(status.at_work) : "nothing at this moment"],
      ["Lake", data(status.lake)],
      ["Process", data(`${status.pid} on ${status.host}`)],
      ["Cycles", count(status.cycles)],
      ["Head of the log", count(status.log_head)],
      ["In the lake up to", `${count(status.lake_head)} (${count(Math.max(0, status.log_head - status.lake_head))} behind)`],
      ["Left the log up to", count(status.log_pruned_to)],
    ]),
    h("h2", {}, "Stages"),
    table(
      "Stages",
      ["Stage", "Runs", "Failures", "Moved", "Last good run", "Took", "Result"],
      Object.entries(status.stages).map(([name, stage]) =>
        h(
          "tr",
          { class: stage.error ? "failing" : "" },
          h("th", { scope: "row" }, data(name)),
          h("td", { class: "number" }, count(stage.runs)),
          h("td", { class: "number" }, count(stage.failures)),
          h("td", { class: "number" }, count(stage.items)),
          h("td", {}, stage.last_done_ms ? moment(stage.last_done_ms).slice(0, 19) : "–"),
          h("td", { class: "number" }, `${stage.last_seconds.toFixed(1)} s`),
          h("td", {}, stage.error ? data(stage.error, { class: "warning" }) : data(stage.note || "–")),
        ),
      ),
    ),
    h("p", { class: "quiet" }, "Reports and audit pages are files: ", h("code", {}, "unisono lake report"), " and ", h("code", {}, "unisono lake audit --html FILE"), " write them."),
  ];
}
