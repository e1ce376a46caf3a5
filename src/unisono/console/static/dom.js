// Elements from data. Texts become text nodes, never markup: what events contain is not trusted.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name in element && name !== "list" && name !== "href") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function put(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

// Text of unknown origin: isolated, so that it cannot reverse or overflow what is around it.
export function data(text, attributes = {}) {
  return h("span", { ...attributes, class: `data ${attributes.class ?? ""}`.trim() }, String(text));
}

export function facts(entries) {
  return h(
    "dl",
    { class: "facts" },
    entries.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value ?? "–")]),
  );
}

// A modal dialog that removes itself when it is closed.
export function openDialog(title, ...children) {
  const close = h("button", { type: "button", class: "close", onclick: () => dialog.close() }, "Close");
  const heading = h("h2", { id: "dialog-title" }, title);
  const dialog = h(
    "dialog",
    { "aria-labelledby": "dialog-title", onclose: () => dialog.remove() },
    h("div", { class: "dialog-head" }, heading, close),
    h("div", { class: "dialog-body" }, children),
  );
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

export function table(caption, columns, rows) {
  return h(
    "div",
    { class: "scroll", tabIndex: 0, role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("caption", { class: "hidden" }, caption),
      h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col" }, column)))),
      h("tbody", {}, rows),
    ),
  );
}
