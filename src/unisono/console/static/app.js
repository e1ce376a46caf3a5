// The shell: pages by the address's fragment, one at a time; what a page repeats stops when it is left or hidden.

import { post } from "/console/api.js";
import { connectionsPage } from "/console/connections.js";
import { h, put } from "/console/dom.js";
import { logPage } from "/console/log.js";
import { modelPage } from "/console/model.js";
import { nowPage } from "/console/now.js";
import { partitionPage } from "/console/partition.js";
import { partitionsPage } from "/console/partitions.js";
import { pipelinePage } from "/console/pipeline.js";

const PAGES = {
  now: { title: "Now", show: nowPage },
  log: { title: "Live log", show: logPage },
  partitions: { title: "Partitions", show: partitionsPage },
  partition: { title: "Partition", show: partitionPage, within: "partitions" },
  connections: { title: "Connections", show: connectionsPage },
  model: { title: "Model", show: modelPage },
  pipeline: { title: "Pipeline", show: pipelinePage },
};

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const trouble = document.getElementById("trouble");
let leave = new AbortController();

function route() {
  const [name, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { name: Object.hasOwn(PAGES, name) ? name : "now", parameters: new URLSearchParams(query ?? "") };
}

function show() {
  leave.abort();
  leave = new AbortController();
  document.querySelectorAll("dialog").forEach((dialog) => dialog.close());
  setTrouble(null);
  const { name, parameters } = route();
  const page = PAGES[name];
  document.title = `${page.title} · Unisono console`;
  put(
    nav,
    Object.entries(PAGES)
      .filter(([, each]) => !each.within)
      .map(([key, each]) => {
        const current = key === name || key === page.within ? "page" : null;
        return h("a", { href: `#/${key}`, "aria-current": current }, each.title);
      }),
  );
  const root = h("div", { class: `page page-${name}` });
  put(main, h("h1", {}, page.title), root);
  page.show(root, { parameters, signal: leave.signal, every: every(leave.signal), setTrouble });
}

function setTrouble(text) {
  trouble.textContent = text ?? "";
  trouble.hidden = !text;
}

// Calls `work` now and again after each end of it, while the page is there and can be seen.
function every(signal) {
  return (ms, work) => {
    let running = false;
    let timer;
    async function turn() {
      clearTimeout(timer);
      if (signal.aborted || running || document.visibilityState === "hidden") return;
      running = true;
      try {
        await work();
        if (!signal.aborted) setTrouble(null);
      } catch (error) {
        if (!signal.aborted) setTrouble(error.message === "Failed to fetch" ? "The server does not answer." : error.message);
      }
      running = false;
      if (!signal.aborted) timer = setTimeout(turn, ms);
    }
    document.addEventListener("visibilitychange", turn, { signal });
    signal.addEventListener("abort", () => clearTimeout(timer));
    turn();
    return turn;
  };
}

const THEMES = ["auto", "light", "dark"];
const themeButton = document.getElementById("theme");

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  themeButton.textContent = `Theme: ${theme}`;
  dispatchEvent(new Event("themechange"));
}

themeButton.addEventListener("click", () => {
  const theme = THEMES[(THEMES.indexOf(localStorage.getItem("unisono-theme") ?? "auto") + 1) % THEMES.length];
  localStorage.setItem("unisono-theme", theme);
  setTheme(theme);
});
const stored = localStorage.getItem("unisono-theme");
setTheme(THEMES.includes(stored) ? stored : "auto");

document.getElementById("logout").addEventListener("click", async () => {
  await post("logout", {});
  location.reload();
});

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

if (location.hash.startsWith("#token=")) history.replaceState(null, "", "/");
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) history.replaceState(null, "", "/");
  show();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});
show();
