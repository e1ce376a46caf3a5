// A state drawn: trees as trees, other values as nested lists. What is closed is drawn when it is opened.

import { data, h } from "/console/dom.js";
import { count, plural } from "/console/format.js";

const OPEN_LEVELS = 2;
const OPEN_ENTRIES = 40;

// `why(path, item)` is called when somebody asks why a value is what it is.
export function drawState(view, why) {
  const leftOut = new Map(view.left_out.map((each) => [JSON.stringify(each.path), each]));
  const context = { leftOut, why };
  const halves = ["tree", "data"].filter((half) => Object.keys(view.value[half] ?? {}).length);
  if (!halves.length) return h("p", {}, "The state is empty.");
  return halves.map((half) =>
    h(
      "section",
      { class: "half" },
      h("h3", {}, half === "tree" ? "Tree actions" : "Canonical events"),
      entries(view.value[half], [half], 0, context),
    ),
  );
}

function isTree(value) {
  return isObject(value) && isObject(value.items) && Array.isArray(value.tree);
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function entries(value, path, level, context) {
  const list = Array.isArray(value) ? value.map((each, at) => [String(at), each]) : Object.entries(value);
  return h("ul", { class: "values" }, list.map(([key, each]) => entry(key, each, [...path, key], level, context)), note(path, context));
}

function note(path, { leftOut }) {
  const missing = leftOut.get(JSON.stringify(path));
  return missing ? h("li", { class: "quiet" }, `${count(missing.parts)} more ${missing.what} are not shown`) : null;
}

function entry(key, value, path, level, context) {
  const name = data(key, { class: "key" });
  if (isTree(value)) return h("li", {}, branch([name, ` · tree of ${plural(Object.keys(value.items).length, ["item", "items"])}`], level, context, () => drawTree(value, path, context), whyButton(path, key, context), true));
  if (typeof value === "object" && value !== null) {
    const size = Array.isArray(value) ? value.length : Object.keys(value).length;
    const missing = context.leftOut.get(JSON.stringify(path))?.parts ?? 0;
    if (size + missing === 0) return h("li", { class: "leaf" }, name, ": ", Array.isArray(value) ? "[ ]" : "{ }", whyButton(path, key, context));
    const label = [name, ` · ${plural(size + missing, Array.isArray(value) ? ["element", "elements"] : ["entry", "entries"])}`];
    return h("li", {}, branch(label, level, context, () => entries(value, path, level + 1, context), whyButton(path, key, context), size <= OPEN_ENTRIES));
  }
  return h("li", { class: "leaf" }, name, ": ", scalar(value), shortened(path, context), whyButton(path, key, context));
}

function branch(label, level, context, draw, button, small) {
  const inner = h("div", {});
  const details = h("details", { open: level < OPEN_LEVELS && small }, h("summary", {}, label), button, inner);
  const fill = () => {
    if (details.open && !inner.hasChildNodes()) inner.append(draw());
  };
  details.addEventListener("toggle", fill);
  fill();
  return details;
}

function scalar(value) {
  return data(JSON.stringify(value), { class: typeof value === "string" ? "text" : "scalar" });
}

function shortened(path, { leftOut }) {
  const missing = leftOut.get(JSON.stringify(path));
  return missing ? h("span", { class: "quiet" }, ` (${count(missing.parts)} more ${missing.what})`) : null;
}

function whyButton(path, key, { why }) {
  return h("button", { type: "button", class: "why", onclick: () => why(path, null), "aria-label": `why? ${key}` }, "why?");
}

function drawTree(tree, path, context) {
  const others = Object.fromEntries(Object.entries(tree).filter(([key]) => key !== "items" && key !== "tree"));
  return h(
    "div",
    {},
    tree.tree.length ? nodes(tree.tree, tree, path, context) : h("p", { class: "quiet" }, "no items"),
    note([...path, "items"], context) ? h("p", { class: "quiet" }, note([...path, "items"], context).textContent) : null,
    Object.keys(others).length ? entries(others, path, 1, context) : null,
  );
}

function nodes(list, tree, path, context) {
  return h(
    "ul",
    { class: "tree" },
    list.filter(isObject).map((node) => {
      const item = tree.items[node.id] ?? {};
      const fields = Object.entries(item);
      const at = [...path, "items", node.id];
      return h(
        "li",
        {},
        h(
          "div",
          { class: "node" },
          data(node.id, { class: "key" }),
          h("button", { type: "button", class: "why", onclick: () => context.why(path, node.id), "aria-label": `why here? ${node.id}` }, "why here?"),
          fields.map(([key, value]) =>
            typeof value === "object" && value !== null
              ? h("div", { class: "part" }, entries({ [key]: value }, at, OPEN_LEVELS, context))
              : h("span", { class: "field-value" }, data(key, { class: "quiet" }), ": ", scalar(value), shortened([...at, key], context), whyButton([...at, key], key, context)),
          ),
        ),
        Array.isArray(node.children) && node.children.length ? nodes(node.children, tree, path, context) : null,
      );
    }),
  );
}
