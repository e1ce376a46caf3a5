// A shared outline and a board on the JavaScript client: everything here is what any program can do with it.

import { createIndexedDbStore, createSyncClient, history, presence, renewal, treeModel, treeUndo } from "./client.js";

const OUTLINE = "outline"; // a tree of items with a title
const BOARD = "explorer"; // a tree of lists, whose children are cards

// -- the client -----------------------------------------------------------------------------------------------

// A window opened with ?as=NAME is another person; all tabs of one person share one connection.
const as = new URLSearchParams(location.search).get("as") ?? "me";
const key = `unisono-demo-${as}`;
const clientId = localStorage.getItem(key) ?? `${as.replace(/[^a-z0-9]/gi, "").slice(0, 20)}-${crypto.randomUUID()}`;
localStorage.setItem(key, clientId);

const PEOPLE = ["Ada", "Blaise", "Carl", "Emmy", "Grace", "Hedy", "Ida", "Kurt", "Leo", "Maria", "Niels", "Rosa"];
const nameKey = `${key}-name`;
if (!localStorage.getItem(nameKey)) localStorage.setItem(nameKey, PEOPLE[Math.floor(Math.random() * PEOPLE.length)]);
const personName = () => localStorage.getItem(nameKey);

async function session() {
  // The server stores the token's name with this person's events.
  const answer = await fetch(`session?${new URLSearchParams({ client_id: clientId, name: personName() })}`);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

// The address does not change while the server runs; kept, so that the page starts without a connection too.
const found = await session().catch(() => JSON.parse(localStorage.getItem("unisono-demo-server") ?? "null"));
if (found === null) throw new Error("the server is not there, and was never there before");
const { url, partition } = found;
localStorage.setItem("unisono-demo-server", JSON.stringify({ url, partition }));

const client = createSyncClient({
  url,
  clientId,
  token: async () => (await session()).token,
  model: treeModel(),
  store: createIndexedDbStore({ name: "demo" }),
  partitions: [partition],
  extensions: [presence(), history(), treeUndo(), renewal()],
});
window.client = client; // to try things in the console

// -- what is shown --------------------------------------------------------------------------------------------

const $ = (id) => document.getElementById(id);

function element(tag, fields = {}, ...children) {
  const made = Object.assign(document.createElement(tag), fields);
  made.append(...children);
  return made;
}

/** A button; its name finds it again when everything was drawn anew. */
function button(text, label, name, onclick) {
  const made = element("button", { type: "button", textContent: text, name, onclick });
  made.setAttribute("aria-label", label);
  return made;
}

/** The ids of items that a draft is about: they are shown as drafts. */
function draftIds() {
  return new Set(
    client.pending().flatMap(({ event: { payload } }) => [payload.value?.id, payload.options?.id].filter(Boolean)),
  );
}

/** An item's title as a field that is saved when it is left, or by Enter. */
function titleField(target, id, title) {
  titles.set(id, title);
  const field = element("input", { defaultValue: title, maxLength: 200, name: id });
  field.setAttribute("aria-label", `Title of ${title || "an untitled item"}`);
  let saved = title;
  const save = () => {
    const text = field.value.trim();
    if (drawing || !text || text === saved) return;
    saved = text;
    attempt(client.tree(target).update(id, { title: text }));
  };
  field.onblur = save;
  field.onkeydown = (event) => {
    if (event.key === "Enter") save();
  };
  return field;
}

function outlineItem(tree, node, drafts) {
  const { title = "" } = tree.items[node.id];
  const row = element(
    "div",
    { className: "row" },
    titleField(OUTLINE, node.id, title),
    button("+", `Add an item below ${title}`, `add ${node.id}`, () => {
      attempt(client.tree(OUTLINE).push({ title: "New item" }, { parent: node.id, position: "last" }));
    }),
    button("×", `Delete ${title}`, `delete ${node.id}`, () => attempt(client.tree(OUTLINE).delete(node.id))),
  );
  const item = element("li", { className: drafts.has(node.id) ? "draft" : "" }, row);
  if (node.children.length) item.append(element("ul", {}, ...node.children.map((below) => outlineItem(tree, below, drafts))));
  return item;
}

function boardList(tree, node, drafts, lists) {
  const { title = "" } = tree.items[node.id];
  const row = element(
    "div",
    { className: "row" },
    titleField(BOARD, node.id, title),
    button("+", `Add a card to ${title}`, `add ${node.id}`, () => {
      attempt(client.tree(BOARD).push({ title: "New card" }, { parent: node.id, position: "last" }));
    }),
    button("×", `Delete the list ${title}`, `delete ${node.id}`, () => attempt(client.tree(BOARD).delete(node.id))),
  );
  const next = lists[(lists.findIndex((each) => each.id === node.id) + 1) % lists.length];
  const cards = node.children.map((card) => {
    const cardTitle = tree.items[card.id].title ?? "";
    const cardRow = element("div", { className: "row" }, titleField(BOARD, card.id, cardTitle));
    if (next.id !== node.id) {
      const there = tree.items[next.id].title;
      cardRow.append(
        button("→", `Move ${cardTitle} to ${there}`, `move ${card.id}`, () => {
          attempt(client.tree(BOARD).move(card.id, { parent: next.id, position: "last" }));
        }),
      );
    }
    cardRow.append(button("×", `Delete ${cardTitle}`, `delete ${card.id}`, () => attempt(client.tree(BOARD).delete(card.id))));
    return element("div", { className: drafts.has(card.id) ? "card draft" : "card" }, cardRow);
  });
  return element("div", { className: drafts.has(node.id) ? "list draft" : "list" }, row, ...cards);
}

function rejection(draft) {
  const why = draft.errors.map((error) => error.message).join("; ") || draft.reason;
  const what = draft.event.payload.value?.title ?? draft.event.type;
  return element(
    "li",
    {},
    element(
      "div",
      { className: "row" },
      element("span", { textContent: `${draft.event.type} “${what}”: ${why}` }),
      button("Try again", `Try again: ${what}`, `retry ${draft.id}`, () => attempt(client.retry(draft.id))),
      button("Discard", `Discard ${what}`, `discard ${draft.id}`, () => attempt(client.discard(draft.id))),
    ),
  );
}

/** Draw everything anew; what has the focus keeps it, a field with what is being typed. */
let drawing = false;
function draw() {
  drawing = true; // a field that is taken away is not left by its person
  const view = client.view(partition);
  const drafts = draftIds();
  const { name, value, defaultValue, selectionStart, selectionEnd } = document.activeElement ?? {};
  const section = document.activeElement?.closest("section");
  const none = (text) => element("p", { className: "empty", textContent: text });
  const outline = view[OUTLINE] ?? { items: {}, tree: [] };
  $("outline").replaceChildren(...outline.tree.map((node) => outlineItem(outline, node, drafts)));
  if (!outline.tree.length) $("outline").append(element("li", {}, none("Nothing here yet.")));
  const board = view[BOARD] ?? { items: {}, tree: [] };
  $("board").replaceChildren(...board.tree.map((node) => boardList(board, node, drafts, board.tree)));
  if (!board.tree.length) $("board").append(none("No list yet."));
  $("rejected").replaceChildren(...client.rejected().map(rejection));
  $("rejections").hidden = !client.rejected().length;
  const field = name && document.getElementsByName(name)[0];
  if (field) {
    if (value !== defaultValue) field.value = value;
    field.focus();
    field.setSelectionRange?.(selectionStart, selectionEnd);
  } else if (name) section?.querySelector("form input")?.focus(); // its item is gone
  drawing = false;
  drawPeople();
  drawUndo();
  if ($("history").open) attempt(drawHistory());
}

// -- who is here ----------------------------------------------------------------------------------------------

$("name").value = personName();

/** Tell the others this person's name, and the item whose title has the focus. */
let lastSaid = "";
function sayWhere() {
  localStorage.setItem(nameKey, $("name").value);
  const at = document.activeElement?.matches(".row input") ? document.activeElement.name : null;
  const said = { name: $("name").value, at: at || null };
  if (JSON.stringify(said) === lastSaid) return;
  lastSaid = JSON.stringify(said);
  client.presence(partition).set(said);
}

/** Somebody else's name, in a colour of their own. What others say is theirs: nothing of it is trusted. */
function person({ clientId, value }) {
  const name = typeof value?.name === "string" && value.name.trim() ? value.name.slice(0, 20) : "Somebody";
  const made = element("span", { className: "person", textContent: name });
  const number = [...clientId].reduce((sum, letter) => sum + letter.codePointAt(0), 0) % 6;
  made.style.setProperty("--person", `var(--person${number})`);
  return made;
}

/** Others are shown in the list of people, and at the item they are at; the fields stay as they are. */
function drawPeople() {
  const { others } = client.presence(partition);
  $("people").replaceChildren(...others.map((each) => element("li", {}, person(each))));
  for (const marks of document.querySelectorAll(".marks")) marks.remove();
  for (const each of others) {
    const field = typeof each.value?.at === "string" && document.getElementsByName(each.value.at)[0];
    if (!field) continue;
    const mark = person(each);
    mark.title = `${mark.textContent} is here`;
    if (!field.nextSibling?.matches?.(".marks")) field.after(element("span", { className: "marks" }));
    field.nextSibling.append(mark);
  }
}

// -- who did what, and when -----------------------------------------------------------------------------------

const DEEDS = { treePush: "added", treeUpdate: "changed", treeMove: "moved", treeDelete: "deleted" };

/** The last title of each item that was seen, also of those that are gone. */
const titles = new Map();

/** The title of the item that an event is about. */
const titleOf = ({ payload }) => payload?.value?.title ?? titles.get(payload?.options?.id) ?? "an item that is gone";

function pastEvent({ committedId, clientId: by, userId, event, statusUpdatedAt }) {
  const at = new Date(statusUpdatedAt);
  return element(
    "li",
    { value: committedId },
    element("strong", { textContent: by === clientId ? "You" : (userId ?? by) }),
    ` ${DEEDS[event.type] ?? event.type} “${titleOf(event)}” `,
    element("time", { dateTime: at.toISOString(), textContent: at.toLocaleTimeString() }),
  );
}

/** The last events: from this browser's own store, offline too, and beyond it from the server. */
let historyLimit = 20;
async function drawHistory() {
  const found = [];
  let before; // of the next older page; null where the history begins
  let missing = "";
  try {
    while (found.length < historyLimit && before !== null) {
      const page = await client.history(partition, { limit: historyLimit - found.length, ...(before && { before }) });
      found.push(...page.events);
      before = page.nextBefore;
    }
  } catch (error) {
    missing = `What happened before is on the server: ${error.message}.`;
  }
  for (const { event: { payload } } of found) {
    const id = payload?.value?.id ?? payload?.options?.id;
    if (payload?.value?.title && !titles.has(id)) titles.set(id, payload.value.title);
  }
  $("past").replaceChildren(...found.map(pastEvent));
  $("older").hidden = before === null;
  $("on-server").textContent = missing;
}

const WORDS = { offline: "Offline", connecting: "Connecting", syncing: "Catching up", live: "Live" };

function drawStatus() {
  const { phase, pending, lastError, stopped, durable, leader } = client.getStatus();
  const parts = [WORDS[phase], pending ? `${pending} not sent yet` : "everything is sent"];
  if (!leader) parts.push("another tab has the connection");
  if (!durable) parts.push("this browser stores nothing: drafts live as long as this page");
  if (stopped) parts.push(stopped);
  else if (phase !== "live" && lastError) parts.push(lastError.message);
  $("status").textContent = parts.join(" · ");
}

// -- what is done ---------------------------------------------------------------------------------------------

/** Undo and redo say what they are about; why one cannot be is said like any refusal. */
function drawUndo() {
  for (const [id, word, event] of [["undo", "Undo", client.undoable(partition)], ["redo", "Redo", client.redoable(partition)]]) {
    const deed = event && `${word}: ${DEEDS[event.type] ?? event.type} “${titleOf(event)}”`;
    $(id).setAttribute("aria-label", deed ?? word);
    $(id).title = deed ?? "";
    $(id).setAttribute("aria-disabled", String(event === null));
  }
}

/** What the view refuses is said at once; the server's refusals come as rejected drafts. */
function attempt(doing) {
  doing.catch((error) => {
    $("status").textContent = error.message;
  });
}

let waiting = false;
client.subscribe((event) => {
  if (event.type === "status") drawStatus();
  else if (event.type === "presence") drawPeople();
  else if (!waiting) {
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  }
});

function adding(form, input, target) {
  $(form).onsubmit = (event) => {
    event.preventDefault();
    const title = $(input).value.trim();
    if (!title) return;
    $(input).value = "";
    attempt(client.tree(target).push({ title }, { position: "last" }));
  };
}

adding("outline-form", "outline-text", OUTLINE);
adding("board-form", "board-text", BOARD);
for (const moved of ["focusin", "focusout"]) document.addEventListener(moved, () => setTimeout(sayWhere, 0));
$("name").oninput = sayWhere;
$("history").ontoggle = () => $("history").open && attempt(drawHistory());
$("older").onclick = () => {
  historyLimit += 20;
  attempt(drawHistory());
};
$("undo").onclick = () => client.undoable(partition) && attempt(client.undo(partition));
$("redo").onclick = () => client.redoable(partition) && attempt(client.redo(partition));
document.addEventListener("keydown", (event) => {
  if (event.key !== "z" || !(event.ctrlKey || event.metaKey) || event.target.matches("input")) return;
  event.preventDefault();
  (event.shiftKey ? $("redo") : $("undo")).click();
});
$("offline").onchange = () => ($("offline").checked ? client.pause() : client.resume());
$("second").onclick = () => {
  const width = Math.max(360, Math.floor(screen.availWidth / 2));
  window.open("?as=guest", "unisono-demo-guest", `width=${width},height=${screen.availHeight},left=${width}`);
};

await client.start();
draw();
sayWhere();
drawStatus();
