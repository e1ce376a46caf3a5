// Events as they are committed, and refused items by their reason.

import { get } from "/console/api.js";
import { data, facts, h, openDialog, put } from "/console/dom.js";
import { timesFrom } from "/console/event_times.js";
import { bytes, clock, count, moment, plural, seconds } from "/console/format.js";

const EVERY_MS = 1000;
const REFUSALS_EVERY_MS = 3000;
const ROWS_MAX = 400;
const PAGE = 100;
const BEHIND_MAX = 2 * PAGE; // further behind, the log goes on at the newest events
const COLUMNS = [
  ["Id", ""],
  ["Submitted", "wide"],
  ["Judged", "wide"],
  ["Committed", ""],
  ["Delivered", "wide"],
  ["Type", ""],
  ["Partitions", ""],
  ["Who", ""],
  ["Size", "wide"],
];

export function logPage(root, { every, parameters, signal, setTrouble }) {
  const filter = { partition: "", client: "", user: "", type: "" };
  for (const name of Object.keys(filter)) filter[name] = parameters.get(name) ?? "";
  let paused = false;
  let next = null; // the id after which new events are asked for
  let oldest = null;
  let timesOf = () => null;
  const noted = new WeakMap(); // the times of a row
  let shownRefusals = "";

  const body = h("tbody", {});
  const pause = h("button", { type: "button", "aria-pressed": "false", onclick: togglePause }, "Pause");
  const older = h("button", { type: "button", onclick: () => loadOlder().catch((error) => setTrouble(error.message)) }, "Older events");
  const note = h("p", { class: "quiet", role: "status" });
  const refusals = h("div", {});
  const fields = Object.keys(filter).map((name) => {
    const input = h("input", { id: `filter-${name}`, value: filter[name], autocomplete: "off", spellcheck: false });
    return h("div", { class: "field" }, h("label", { htmlFor: `filter-${name}` }, name[0].toUpperCase() + name.slice(1)), input);
  });
  const form = h("form", { class: "filters", onsubmit: applyFilter }, fields, h("button", { type: "submit" }, "Filter"), pause);
  put(
    root,
    form,
    note,
    h(
      "div",
      { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Events" },
      h(
        "table",
        { class: "log" },
        h("caption", { class: "hidden" }, "Events, the newest first"),
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            COLUMNS.map(([name, kind]) => h("th", { scope: "col", class: kind }, name)),
          ),
        ),
        body,
      ),
    ),
    h("p", {}, older),
    h(
      "p",
      { class: "quiet" },
      "Submitted: when the server had accepted the request. Judged, committed (durable) and delivered: how long after that; ",
      "delivered is when the last subscriber's copy was written to its connection. They are noted while a live log is open, ",
      "for the newest events of this node. Without them, committed is the time of day.",
    ),
    h("h2", {}, "Refused"),
    h("p", { class: "quiet" }, "Since the server started, by reason and field. Refused items are not stored; one of each kind is kept in memory."),
    refusals,
  );

  function applyFilter(event) {
    event.preventDefault();
    for (const name of Object.keys(filter)) filter[name] = form.querySelector(`#filter-${name}`).value.trim();
    next = oldest = null;
    body.replaceChildren();
    tick();
  }

  function togglePause() {
    paused = !paused;
    pause.textContent = paused ? "Resume" : "Pause";
    pause.setAttribute("aria-pressed", String(paused));
    if (!paused) tick();
  }

  // Times become known after the event does, and are asked for after it.
  function fillTimes() {
    for (const line of body.rows) {
      if (noted.has(line) || !line.dataset.id) continue;
      const times = timesOf(Number(line.dataset.id));
      if (!times?.known) continue;
      const put = (kind, text) => {
        line.querySelector(`.${kind}`).textContent = text;
      };
      put("submitted", times.submittedMs === null ? "–" : clock(times.submittedMs));
      put("judged", after(times.judged));
      if (times.fromSubmit && times.committed !== null) {
        put("since", after(times.committed));
        line.classList.add("timed");
      }
      put("delivered", times.receivers === 0 ? "no subscribers" : after(times.delivered));
      noted.set(line, times);
    }
  }

  function row(event) {
    const open = () => showEvent(event.committed_id, noted.get(line) ?? null, setTrouble);
    const kind = event.about ? [data(event.type), " ", data(event.about, { class: "quiet" })] : data(event.type);
    const who = event.user_id ? [data(event.user_id), " ", data(event.client_id, { class: "quiet" })] : data(event.client_id);
    const more = event.more_partitions ? ` +${event.more_partitions}` : "";
    const line = h(
      "tr",
      {},
      h("td", {}, h("button", { type: "button", class: "link", onclick: open, "aria-label": `Open event ${event.committed_id}` }, String(event.committed_id))),
      h("td", { class: "wide number submitted" }, "–"),
      h("td", { class: "wide number judged" }, "–"),
      h("td", { class: "number" }, h("span", { class: "clock" }, clock(event.time)), " ", h("span", { class: "since" })),
      h("td", { class: "wide number delivered" }, "–"),
      h("td", { class: "kind" }, kind),
      h("td", { class: "places" }, event.partitions.map((name, at) => [at ? ", " : "", h("a", { href: partitionLink(name, event.committed_id) }, data(name))]), more),
      h("td", { class: "who" }, who),
      h("td", { class: "wide number" }, bytes(event.bytes)),
    );
    line.dataset.id = event.committed_id;
    return line;
  }

  async function loadOlder() {
    const found = await get("events", { ...filter, before: oldest ?? undefined, limit: PAGE }, signal);
    if (next === null) next = found.head;
    oldest = found.looked_to;
    body.append(...found.events.map(row));
    older.hidden = oldest <= found.pruned_to + 1;
    describe(found);
  }

  async function loadNewer() {
    const found = await get("events", { ...filter, after: next, limit: PAGE, behind_max: BEHIND_MAX }, signal);
    if (found.skipped) {
      const skipped = next;
      found.events = found.events.filter((event) => event.committed_id > skipped);
      const upto = found.looked_to - 1;
      if (upto > skipped) body.prepend(gap(skipped + 1, upto));
      body.prepend(...found.events.map(row));
      next = found.head;
    } else {
      next = found.looked_to;
      body.prepend(...found.events.reverse().map(row));
    }
    while (body.rows.length > ROWS_MAX) body.lastElementChild.remove();
    while (body.rows.length && !body.lastElementChild.dataset.id) body.lastElementChild.remove();
    if (body.rows.length >= ROWS_MAX - 1) oldest = Number(body.lastElementChild.dataset.id);
    older.hidden = oldest !== null && oldest <= found.pruned_to + 1;
    describe(found);
  }

  function describe(found) {
    const parts = [`Head ${count(found.head)}`];
    if (paused) parts.push("paused");
    if (found.pruned_to) parts.push(`events up to ${count(found.pruned_to)} have left the log for the lake`);
    note.textContent = parts.join(" · ");
  }

  const tick = every(EVERY_MS, async () => {
    if (next === null) await loadOlder();
    else if (!paused) await loadNewer();
    else note.textContent = "Paused";
    const newest = body.rows.length ? Number(body.rows[0].dataset.id) : 0;
    const { groups, fronts } = await get("times", { after: Math.max(0, newest - 2 * PAGE) }, signal);
    timesOf = timesFrom(groups, fronts);
    fillTimes();
  });
  every(REFUSALS_EVERY_MS, async () => showRefusals((await get("refusals", {}, signal)).refusals));

  function showRefusals(found) {
    const text = JSON.stringify(found);
    if (text === shownRefusals) return;
    shownRefusals = text;
    const open = new Set([...refusals.querySelectorAll("details[open]")].map((each) => each.dataset.key));
    put(refusals, found.length ? found.map((each) => refusal(each, open)) : h("p", {}, "Nothing was refused."));
  }
}

// How long after the submission; "+" says that it is no time of day.
const after = (value) => (value === null ? "–" : `+${seconds(value)}`);

function gap(first, last) {
  const text = `Events ${count(first)} to ${count(last)} came faster than they can be shown.`;
  return h("tr", { class: "gap" }, h("td", { colSpan: COLUMNS.length }, text));
}

function refusal(each, open) {
  const { example } = each;
  const key = `${each.reason} ${each.field} ${each.message}`;
  const details = h(
    "details",
    { class: "refusal", open: open.has(key) },
    h("summary", {}, h("strong", {}, count(each.count)), " × ", data(each.reason), " ", data(each.field || "(no field)", { class: "code" }), " ", data(each.message)),
    facts([
      ["Last", moment(each.last_ms)],
      ["First", moment(each.first_ms)],
      ["Example: id", data(example.id)],
      ["Client", data(example.client_id)],
      example.author ? ["Author", data(example.author)] : null,
      ["Profile", data(example.profile)],
      ["Partitions", data(example.partitions.join(", "))],
    ]),
    h("ul", {}, example.errors.map((error) => h("li", {}, data(error.field, { class: "code" }), ": ", data(error.message)))),
    example.event === null ? h("p", { class: "quiet" }, "Refused before it was judged; its content is not kept.") : h("pre", { class: "data", tabIndex: 0 }, example.event),
  );
  details.dataset.key = key;
  return details;
}

export function partitionLink(name, at, path) {
  const query = new URLSearchParams({ name });
  if (at) query.set("at", String(at));
  if (path) query.set("path", JSON.stringify(path));
  return `#/partition?${query}`;
}

function path(times) {
  if (!times) return [];
  const from = times.fromSubmit ? "after it was submitted" : "after its group was begun";
  const written = times.receivers === null ? "" : `, to ${plural(times.receivers, ["connection", "connections"])}`;
  return [
    times.submittedMs === null ? null : ["Submitted", moment(times.submittedMs)],
    times.judged === null ? null : ["Judged", `${seconds(times.judged)} ${from}`],
    times.committed === null ? null : ["Durable", `${seconds(times.committed)} ${from}`],
    times.delivered === null ? null : ["Delivered", `${seconds(times.delivered)} ${from}${written}`],
  ];
}

export async function showEvent(committedId, times, setTrouble) {
  try {
    const event = await get("event", { committed_id: committedId });
    let text = event.event;
    try {
      if (!event.left_out_bytes) text = JSON.stringify(JSON.parse(event.event), null, 2);
    } catch {
      // shown as it is
    }
    const inTree = event.about && event.item && String(event.type).startsWith("tree");
    const place = inTree ? ["tree", ...event.about.split("."), "items", event.item] : null;
    openDialog(
      `Event ${event.committed_id}`,
      facts([
        ...path(times),
        ["Committed", moment(event.time)],
        ["Id", data(event.id)],
        ["Client", data(event.client_id)],
        ["User", event.user_id ? data(event.user_id) : "none"],
        event.author ? ["Author", data(event.author)] : null,
        ["Hash", data(event.hash, { class: "code" })],
        ["Size", bytes(event.bytes)],
        ["Partitions", event.partitions.map((name, at) => [at ? ", " : "", h("a", { href: partitionLink(name, event.committed_id) }, data(name))])],
        place ? ["Its item", h("a", { href: partitionLink(event.partitions[0], event.committed_id, place) }, "history of ", data(event.item))] : null,
      ]),
      h("pre", { class: "data", tabIndex: 0 }, text),
      event.left_out_bytes ? h("p", {}, `${bytes(event.left_out_bytes)} more are not shown.`) : null,
    );
  } catch (error) {
    setTrouble(error.message);
  }
}
