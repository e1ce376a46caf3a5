// Compiles the packages and checks their types, then makes @unisono/client as it is published (packages/client/dist).
// With `--demo`, and a path where it is not the usual one, also as the demo of the server has it.

import { execFileSync } from "node:child_process";
import { dirname } from "node:path";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const here = new URL("./", import.meta.url).pathname;
const client = `${here}packages/client/`;
const source = (file) => readFileSync(`${client}src/${file}`, "utf8");

/** Source without comments and texts. */
const code = (text) => text.replace(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, "").replace(/"[^"\n]*"/g, '""');

/** Declared in these files and stored, or looked up by their names. */
const KEPT = ["logId", "logEpoch", "atomic_unsupported", "too_many_events", "too_big", "pause", "resume", "timeoutMs", "before", "limit"];

/** The files whose names never leave the package, because no program, store, tab or server sees an object of theirs. */
const INNER = [
  "core.ts", "outgoing.ts", "session.ts", "status.ts", "submission.ts", "transactions.ts", "net/connection.ts", "net/renewal.ts",
  "store/apply.ts", "store/log.ts", "sync/advance.ts", "sync/bootstrap.ts", "sync/drafts.ts", "sync/failing-drafts.ts",
  "sync/history.ts", "sync/inputs-effects.ts", "sync/state.ts", "sync/transition.ts", "view/partition-view.ts",
  "view/replica.ts",
];

/** What uses these files, and has members of its own that programs see. */
const USERS = ["client.ts", "history.ts", "presence.ts", "undo.ts"];

/** The members that these files declare get short names, unless any other file uses the name too. */
function internalNames() {
  const declared = INNER.flatMap(members);
  const isOther = (file) => file.endsWith(".ts") && !INNER.includes(file) && !USERS.includes(file);
  const others = readdirSync(`${client}src`, { recursive: true }).filter(isOther);
  const seen = new Set([...others.flatMap((file) => code(source(file)).match(/\w+/g)), ...USERS.flatMap(members), ...KEPT]);
  const all = INNER.map((file) => code(source(file))).join();
  const uses = (name) => all.split(name).length;
  return [...new Set(declared)].filter((name) => !seen.has(name)).sort((a, b) => uses(b) - uses(a));
}

const LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/** A letter, then a letter and a digit: no member has such a name. */
const shortName = (number) =>
  LETTERS[number] ?? `${LETTERS[(number - LETTERS.length) % LETTERS.length]}${Math.floor(number / LETTERS.length) - 1}`;

/** The members that a file declares. */
const members = (file) =>
  [...code(source(file)).matchAll(/^ {2,4}(?:(?:readonly|protected|override|public|async|get) )*([a-z]\w{2,})\??(?:: |\(|<)/gm)].map(([, name]) => name);

/** The inputs and effects of the sync state get short names as well. */
function shortKinds(text) {
  const kinds = [...source("sync/inputs-effects.ts").matchAll(/kind: "(\w+)"/g)].map(([, kind]) => kind);
  return [...new Set(kinds)].reduce((all, kind, number) => all.replaceAll(`"${kind}"`, `"${number}"`), text);
}

/** The compiled files with short names for what is internal, one by one, so that a program loads what it imports. */
async function publish() {
  const names = internalNames();
  const files = readdirSync(`${client}build`, { recursive: true }).filter((file) => file.endsWith(".js"));
  const { outputFiles } = await build({
    entryPoints: files.map((file) => `${client}build/${file}`),
    outbase: `${client}build`,
    outdir: `${client}dist`,
    write: false,
    format: "esm",
    target: "es2022",
    mangleProps: new RegExp(`^(${names.join("|")})$`),
    mangleCache: Object.fromEntries(names.map((name, number) => [name, shortName(number)])), // the same in all files
  });
  // What is as it was stays: programs that run may be loading it.
  const kept = outputFiles.map(({ path }) => path);
  mkdirSync(`${client}dist`, { recursive: true });
  for (const name of readdirSync(`${client}dist`, { recursive: true })) {
    if (name.endsWith(".js") && !kept.includes(`${client}dist/${name}`)) rmSync(`${client}dist/${name}`);
  }
  for (const file of outputFiles) {
    const text = shortKinds(file.text);
    mkdirSync(dirname(file.path), { recursive: true });
    if (!existsSync(file.path) || readFileSync(file.path, "utf8") !== text) writeFileSync(file.path, text);
  }
}

execFileSync(process.execPath, [`${here}node_modules/typescript/bin/tsc`, "--build", here], { stdio: "inherit" });
await publish();

const demo = process.argv.indexOf("--demo");
if (demo >= 0) {
  await build({
    entryPoints: [`${client}dist/index.js`],
    outfile: process.argv[demo + 1] ?? `${here}../../src/unisono/demo/static/client.js`,
    bundle: true,
    minify: true,
    format: "esm",
    target: "es2022",
    legalComments: "none",
    banner: { js: "// @unisono/client, built from clients/js by `npm run build`. Do not edit." },
  });
}
