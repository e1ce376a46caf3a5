// One partition: its state after any of its events, the difference between two of them, and why a value is what it is.

import { get } from "/console/api.js";
import { data, facts, h, openDialog, put } from "/console/dom.js";
import { count, moment, plural } from "/console/format.js";
import { partitionLink, showEvent } from "/console/log.js";
import { drawState } from "/console/state.js";

const DRAG_MS = 150;

export async function partitionPage(root, { parameters, signal, setTrouble }) {
  const name = parameters.get("name") ?? "";
  const heading = h("p", { class: "lead" }, h("a", { href: "#/partitions" }, "Partitions"), " / ", h("strong", {}, data(name)));
  const note = h("p", { role: "status" }, "Reading the history…");
  put(root, heading, note);
  let history;
  try {
    history = await get("history", { partition: name }, signal);
  } catch (error) {
    if (!signal.aborted) note.textContent = error.message;
    return;
  }
  const { ids, times, start } = history;
  if (!ids.length && !start) {
    note.textContent = "There are no events in this partition.";
    return;
  }
  note.textContent =
    plural(ids.length, ["event", "events"]) +
    (start ? ` after the snapshot at ${count(start)}: the history before it is too long to be replayed here` : "") +
    (history.model_version === null ? "" : `, under version ${history.model_version} of the model`) +
    ".";

  const idAt = (place) => (place === 0 ? start : ids[place - 1]);
  const timeAt = (place) => (place === 0 ? null : times[place - 1]);
  const placeOf = (id) => {
    let low = 0;
    let high = ids.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ids[middle] <= id) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  const placeOfTime = (ms) => {
    let place = 0;
    for (let at = 0; at < times.length; at += 1) if (times[at] <= ms) place = at + 1;
    return place;
  };

  const asked = Number(parameters.get("at"));
  let place = asked ? placeOf(asked) : ids.length;
  let compared = null;
  let running = null;
  let timer;

  const stateBox = h("div", { class: "state", "aria-live": "off" });
  const where = h("output", { class: "where", htmlFor: "moment" });
  const slider = h("input", { id: "moment", type: "range", min: 0, max: ids.length, step: 1, value: place, "aria-label": "Moment in the history" });
  const byId = h("input", { id: "by-id", type: "number", min: 0, step: 1, inputMode: "numeric" });
  const byTime = h("input", { id: "by-time", type: "datetime-local", step: 1 });
  const otherWhere = h("output", { class: "where", htmlFor: "other" });
  const other = h("input", { id: "other", type: "range", min: 0, max: ids.length, step: 1, value: 0, "aria-label": "Moment to compare with" });
  const otherBox = h("div", { class: "moment", hidden: true }, h("label", { htmlFor: "other" }, "Compared with"), other, otherWhere);
  const compare = h("input", { type: "checkbox", id: "compare" });

  slider.addEventListener("input", () => go(Number(slider.value)));
  other.addEventListener("input", () => {
    compared = Number(other.value);
    go(place);
  });
  compare.addEventListener("change", () => {
    otherBox.hidden = !compare.checked;
    compared = compare.checked ? Number(other.value) : null;
    go(place);
  });
  const step = (by) => h("button", { type: "button", onclick: () => go(place + by), "aria-label": by < 0 ? "One event back" : "One event on" }, by < 0 ? "◀" : "▶");
  put(
    root,
    heading,
    note,
    h(
      "div",
      { class: "moments" },
      h("div", { class: "moment" }, h("label", { htmlFor: "moment" }, "State after event"), slider, where),
      otherBox,
      h(
        "div",
        { class: "filters" },
        step(-1),
        step(1),
        h("button", { type: "button", onclick: () => go(ids.length) }, "Newest"),
        h("div", { class: "field" }, h("label", { htmlFor: "by-id" }, "committed_id"), byId),
        h("div", { class: "field" }, h("label", { htmlFor: "by-time" }, "Time"), byTime),
        h("div", { class: "check" }, compare, h("label", { htmlFor: "compare" }, "Compare two moments")),
      ),
    ),
    stateBox,
  );
  byId.addEventListener("change", () => byId.value !== "" && go(placeOf(Number(byId.value))));
  byTime.addEventListener("change", () => byTime.value !== "" && go(placeOfTime(new Date(byTime.value).getTime() + 999)));

  function described(at) {
    if (at === 0) return start ? `snapshot at ${count(start)}` : "before the first event";
    return `${count(idAt(at))} · ${moment(timeAt(at))} · ${count(at)} of ${count(ids.length)}`;
  }

  function go(to) {
    place = Math.max(0, Math.min(ids.length, to));
    slider.value = place;
    slider.setAttribute("aria-valuetext", described(place));
    put(where, described(place), " ", place ? h("button", { type: "button", class: "link", onclick: () => showEvent(idAt(place), null, setTrouble) }, "event") : "");
    otherWhere.textContent = described(Number(other.value));
    other.setAttribute("aria-valuetext", described(Number(other.value)));
    clearTimeout(timer);
    timer = setTimeout(load, DRAG_MS);
  }

  async function load() {
    running?.abort();
    const mine = (running = new AbortController());
    signal.addEventListener("abort", () => mine.abort(), { signal: mine.signal });
    stateBox.setAttribute("aria-busy", "true");
    try {
      const at = idAt(place);
      const drawn =
        compared === null
          ? state(await get("state", { partition: name, at }, mine.signal))
          : difference(await get("difference", { partition: name, at: idAt(compared), then: at }, mine.signal));
      put(stateBox, drawn);
      setTrouble(null);
    } catch (error) {
      if (mine.signal.aborted) return;
      put(stateBox, h("p", {}, error.message));
    }
    stateBox.removeAttribute("aria-busy");
  }

  function state(view) {
    return [
      view.skipped ? h("p", { class: "warning" }, `${count(view.skipped)} of the last replayed events do not apply under the model in force and changed nothing.`) : null,
      drawState(view, why),
    ];
  }

  function difference({ differences, more }) {
    if (!differences.length) return h("p", {}, "The states at these two moments are equal.");
    return [
      h("p", {}, `${plural(differences.length, ["difference", "differences"])}${more ? " and more" : ""}, from ${described(compared)} to ${described(place)}.`),
      h(
        "ul",
        { class: "differences" },
        differences.map((each) => {
          const parent = each.kind === "parent";
          const path = parent ? `place of ${each.path.at(-1)} in ${shownPath(each.path.slice(0, -2))}` : shownPath(each.path);
          const [before, after] = [each.before, each.after].map((text) => (parent ? below(text) : text));
          return h(
            "li",
            {},
            h("p", { class: "path" }, data(path), each.kind === "keys" ? " in another order" : null),
            change(before, after),
          );
        }),
      ),
    ];
  }

  async function why(path, item) {
    const at = idAt(place);
    const what = item === null ? shownPath(path) : `the place of ${item} in ${shownPath(path)}`;
    const body = h("div", {}, h("p", { role: "status" }, "Replaying…"));
    openDialog("Why is it so?", h("p", {}, data(what, { class: "code" }), ` at ${count(at)}`), body);
    try {
      const found = await get("changes", { partition: name, at, path: JSON.stringify(path), item }, signal);
      const { refusals } = await get("refusals", {}, signal);
      put(body, changes(found, item), refusedBeside(refusals, item ?? itemOf(path)));
    } catch (error) {
      if (!signal.aborted) put(body, h("p", {}, error.message));
    }
  }

  function changes({ value, changes: list, looked_after: lookedAfter, start: from }, item) {
    const searched = lookedAfter > from ? `Events up to ${count(lookedAfter)} were not searched: the newest changes are shown.` : null;
    if (!list.length) {
      if (searched) return h("p", {}, "No change was found in the time there is for it. ", searched);
      return h("p", {}, from ? `No event since the snapshot at ${count(from)} has changed it; what set it is in the history before.` : "No event has set it.");
    }
    const shown =
      typeof value === "object" && value !== null
        ? null
        : facts([item === null ? ["Value", data(JSON.stringify(value))] : ["Place", data(below(JSON.stringify(value)))]]);
    return [
      shown,
      h("p", {}, list.length === 1 ? "Set by one event:" : `Changed by ${count(list.length)} events, the newest first:`),
      h(
        "ol",
        { class: "changes" },
        list.map(({ event, before, after }) =>
          h(
            "li",
            {},
            h(
              "p",
              {},
              h("button", { type: "button", class: "link", onclick: () => showEvent(event.committed_id, null, setTrouble) }, `event ${event.committed_id}`),
              ` · ${moment(event.time)} · `,
              data(event.type),
              " by ",
              data(event.user_id ?? event.client_id),
              " · ",
              h("a", { href: partitionLink(name, event.committed_id) }, "state then"),
            ),
            item === null ? change(before, after) : change(below(before), below(after)),
          ),
        ),
      ),
      searched ? h("p", { class: "quiet" }, searched) : null,
    ];
  }

  // Kinds of refusals whose example is of this partition and, where the path leads to an item, of that item.
  function refusedBeside(refusals, item) {
    const some = refusals.filter(({ example }) => example.partitions.includes(name) && (item === null || (example.event ?? "").includes(JSON.stringify(item))));
    if (!some.length) return null;
    return [
      h("h3", {}, "Refused beside it"),
      h("p", { class: "quiet" }, "One example of each kind since the server started; refused items are not stored."),
      h(
        "ul",
        { class: "changes" },
        some.map(({ last_ms: last, example, reason }) =>
          h(
            "li",
            {},
            h("p", {}, `${moment(last)} · `, data(example.client_id), " · ", data(reason)),
            example.errors.map((error) => h("p", {}, data(error.field, { class: "code" }), ": ", data(error.message))),
          ),
        ),
      ),
    ];
  }

  go(place);
  const path = parameters.get("path");
  if (path) {
    try {
      why(JSON.parse(path), null);
    } catch {
      setTrouble("The address has a malformed path.");
    }
  }
}

// The item that a path leads into, if it leads into one.
function itemOf(path) {
  const at = path.indexOf("items");
  return path[0] === "tree" && at > 0 && at + 1 < path.length ? path[at + 1] : null;
}

function change(before, after) {
  return [
    before === null ? null : h("p", { class: "gone" }, h("span", { class: "hidden" }, "before: "), data(before)),
    after === null ? null : h("p", { class: "come" }, h("span", { class: "hidden" }, "after: "), data(after)),
  ];
}

// The parent of an item, given as JSON, in words.
function below(text) {
  if (text === null || text === "null") return null;
  return text === '"_root"' || text === '""' ? "at the top" : `below ${text}`;
}

function shownPath(path) {
  return path.join(" › ");
}
