// The pipeline beside this server, as its status file describes it; its pages; and queries over its lake.

import { get, post } from "/console/api.js";
import { data, facts, h, put, table } from "/console/dom.js";
import { ago, count, moment } from "/console/format.js";

const EVERY_MS = 5000;
const EXAMPLE = "SELECT type, schema, count(*) AS events, max(committed_at) AS newest\nFROM events GROUP BY ALL ORDER BY events DESC";
const TITLES = { report: "What happened in the log", audit: "The last audit" };

export function pipelinePage(root, { every, signal }) {
  const overview = h("div", {});
  const pages = h("div", {});
  const queries = h("div", {});
  let shownPages = "";
  let shownQueries = null;
  put(root, overview, queries, pages);

  every(EVERY_MS, async () => {
    const { status, data: directory, reports, sql } = await get("pipeline", {}, signal);
    put(overview, status ? shown(status) : setUp(directory));
    const newest = JSON.stringify(reports);
    if (newest !== shownPages) {
      shownPages = newest;
      put(pages, reports.length ? reports.map(report) : status ? noReports(status) : null);
    }
    const state = JSON.stringify(sql);
    if (state !== shownQueries) {
      shownQueries = state;
      put(queries, sql.lake ? queryBox(sql) : null);
    }
  });
}

function setUp(directory) {
  return [
    h("p", {}, "No pipeline keeps its status in the server's data directory."),
    h("p", {}, "Start one beside the server; it exports the log into a lake, writes snapshots, audits, and lets old events leave the log:"),
    h("pre", { tabIndex: 0 }, `unisono lake run --data ${directory} --lake DIR --out DIR`),
    h("p", { class: "quiet" }, "It needs the packages of unisono[pipeline] and a Java runtime. Its stages, figures, reports and a box for queries appear here within seconds."),
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
  ];
}

// A page of another program: in a frame without scripts and without an origin.
function report({ name, written_ms: written }) {
  const address = `/reports/${name}`;
  return [
    h("h2", {}, TITLES[name]),
    h("p", { class: "quiet" }, `Written ${moment(written).slice(0, 19)}. `, h("a", { href: address, target: "_blank", rel: "noopener" }, "Open it alone")),
    h("iframe", { class: "report", title: TITLES[name], src: address, sandbox: "", loading: "lazy" }),
  ];
}

function noReports(status) {
  return [
    h("h2", {}, "Reports"),
    h(
      "p",
      { class: "quiet" },
      status.out ? ["No page was written yet, or they are on another machine: ", data(status.out)] : ["With ", h("code", {}, "--out DIR"), " the pipeline writes reports and audits, which are shown here."],
    ),
  ];
}

function queryBox(sql) {
  if (sql.missing) return [h("h2", {}, "Query the lake"), h("p", {}, data(sql.missing))];
  const text = h("textarea", { id: "sql", rows: 4, spellcheck: false, value: EXAMPLE });
  const run = h("button", { type: "submit", class: "primary" }, "Run");
  const result = h("div", { role: "status" });
  const form = h(
    "form",
    { onsubmit: submit },
    h("div", { class: "field" }, h("label", { htmlFor: "sql" }, "One SELECT, in the SQL of DuckDB"), text),
    h("p", {}, run, h("span", { class: "quiet" }, " or Ctrl+Enter in the box")),
  );
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
  });

  async function submit(event) {
    event.preventDefault();
    if (run.disabled) return;
    run.disabled = true;
    put(result, h("p", { class: "quiet" }, "Running …"));
    try {
      put(result, rowsOf(await post("sql", { sql: text.value })));
    } catch (error) {
      put(result, h("pre", { class: "data warning", tabIndex: 0 }, error.message));
    }
    run.disabled = false;
  }

  return [
    h("h2", {}, "Query the lake"),
    h(
      "p",
      { class: "quiet" },
      "Tables: ",
      Object.entries(sql.tables).map(([name, columns], at) => [at ? ", " : "", h("code", { title: columns }, name)]),
      ". DESCRIBE shows their columns. A query reads the lake and nothing else, and is stopped when it takes too long or too much memory.",
    ),
    form,
    result,
  ];
}

function rowsOf(found) {
  const rows = found.rows.map((row) => h("tr", {}, row.map((value) => h("td", {}, value === null ? h("span", { class: "quiet" }, "null") : data(value)))));
  const columns = found.columns.map((name, at) => [data(name), " ", h("span", { class: "quiet" }, found.types[at])]);
  const more = found.more ? ", and there is more than is shown" : "";
  return [
    h("p", { class: "quiet" }, `${count(rows.length)} ${rows.length === 1 ? "row" : "rows"}${more}; ${found.seconds.toFixed(2)} s; the lake as of event ${count(found.head)}.`),
    rows.length ? table("Result", columns, rows) : null,
  ];
}
