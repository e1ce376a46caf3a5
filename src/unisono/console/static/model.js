// The model in force, and a preview of another version against the log.

import { get, post } from "/console/api.js";
import { data, facts, h, put, table } from "/console/dom.js";
import { bytes, count } from "/console/format.js";

export async function modelPage(root, { signal, setTrouble }) {
  put(root, h("p", { role: "status" }, "Loading the model…"));
  let model;
  try {
    model = await get("model", {}, signal);
  } catch (error) {
    if (!signal.aborted) put(root, h("p", {}, error.message));
    return;
  }
  const schemas = model.schemas ? Object.entries(model.schemas) : null;
  const targets = model.tree?.targets ? Object.entries(model.tree.targets) : null;
  const labels = Object.entries(model.rule_counts);
  put(
    root,
    facts([
      ["Name", data(model.name)],
      ["Version in force", model.model_version === null ? "none" : count(model.model_version)],
      ["Digest", model.digest ? data(model.digest, { class: "code" }) : "–"],
      ["Directory", model.directory ? data(model.directory) : "–"],
      ["Claims stored with events", model.claims.length ? data(model.claims.join(", ")) : "none"],
    ]),
    h("h2", {}, "Schemas of canonical events"),
    schemas === null
      ? h("p", {}, "This server has no registry of schemas.")
      : table(
          "Schemas",
          ["Schema", "Checks", "Reducer"],
          schemas.map(([name, each]) =>
            h("tr", {}, h("th", { scope: "row" }, data(name)), h("td", {}, data(each.checks.join(", ") || "–")), h("td", {}, data(each.reducer ?? "–"))),
          ),
        ),
    h("h2", {}, "Targets of tree actions"),
    targets === null
      ? h("p", {}, "Any target and any action.")
      : table("Targets", ["Target", "Actions"], targets.map(([name, actions]) => h("tr", {}, h("th", { scope: "row" }, data(name)), h("td", {}, data(actions.join(", ")))))),
    h("h2", {}, "Rules"),
    labels.length
      ? table(
          "Rules",
          ["Rule", "Slow", "Failed", "Stopped"],
          labels.map(([label, each]) =>
            h("tr", {}, h("th", { scope: "row" }, data(label)), ["slow", "failed", "stopped"].map((kind) => h("td", { class: "number" }, count(each[kind] ?? 0)))),
          ),
        )
      : h("p", {}, "Since the server started no rule was slow, failed or was stopped."),
    h("p", { class: "quiet" }, "The server counts rules that passed their time budget, raised, or were stopped; how often each was called, and its usual time, it does not measure."),
    preview(setTrouble),
    h("h2", {}, "Files"),
    model.files.length ? model.files.map(file) : h("p", {}, "The model has no files."),
    model.files_left_out ? h("p", {}, `${count(model.files_left_out)} more files are not shown.`) : null,
  );
}

function file(each) {
  return h(
    "details",
    {},
    h("summary", {}, data(each.name), h("span", { class: "quiet" }, ` ${bytes(each.bytes)}`)),
    h("pre", { class: "data", tabIndex: 0 }, each.text),
  );
}

function preview(setTrouble) {
  const directory = h("input", { id: "directory", autocomplete: "off", spellcheck: false, required: true });
  const result = h("div", { role: "status" });
  const button = h("button", { type: "submit" }, "Preview");
  async function run(event) {
    event.preventDefault();
    button.disabled = true;
    put(result, h("p", {}, "Running every event of the log through it, in a process of its own…"));
    try {
      const found = await post("preview", { model: directory.value.trim() });
      setTrouble(null);
      put(result, outcome(found));
    } catch (error) {
      put(result, h("p", { class: "warning" }, data(error.message)));
    }
    button.disabled = false;
  }
  return h(
    "section",
    {},
    h("h2", {}, "Preview another version"),
    h("p", { class: "quiet" }, "Nothing is switched: ", h("code", {}, "unisono model reload"), " does that. This shows what would become of the events that are in the log."),
    h("form", { class: "filters", onsubmit: run }, h("div", { class: "field grow" }, h("label", { htmlFor: "directory" }, "Directory on the server's machine"), directory), button),
    result,
  );
}

function outcome(found) {
  const { history } = found;
  return [
    h("p", {}, `Version ${count(found.old_model_version)} → ${count(found.new_model_version)}`),
    history
      ? [
          facts([
            ["No longer apply", count(history.no_longer)],
            ["Would be refused today", count(history.refused)],
            ["Apply under neither", count(history.never)],
          ]),
          h("ul", {}, history.lines.map((line) => h("li", {}, data(line)))),
        ]
      : null,
    h("details", {}, h("summary", {}, "What changes in the model"), h("pre", { class: "data", tabIndex: 0 }, JSON.stringify(found.changes, null, 2))),
  ];
}
