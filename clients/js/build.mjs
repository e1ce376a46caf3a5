// Compiles the packages and checks their types, then bundles @unisono/client as it is published (packages/client/dist).
// With `--demo`, and a path where it is not the usual one, also as the demo of the server has it.

import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const here = new URL("./", import.meta.url).pathname;
const client = `${here}packages/client/`;
const source = (file) => readFileSync(`${client}src/${file}`, "utf8");

/** Source without comments and texts. */
const code = (text) => text.replace(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, "").replace(/"[^"\n]*"/g, '""');

/** Declared in these files and stored, or looked up by their names. */
const KEPT = ["logId", "logEpoch", "atomic_unsupported", "too_many_events", "too_big", "pause", "resume"];

/** The files whose names never leave the package, because no program, store, tab or server sees an object of theirs. */
const INNER = [
  "core.ts", "outgoing.ts", "session.ts", "status.ts", "submission.ts", "transactions.ts", "net/connection.ts", "net/renewal.ts",
  "store/apply.ts", "store/log.ts", "sync/advance.ts", "sync/bootstrap.ts", "sync/drafts.ts", "sync/failing-drafts.ts",
  "sync/history.ts", "sync/inputs-effects.ts", "sync/state.ts", "sync/transition.ts", "view/partition-view.ts",
  "view/replica.ts",
];

/** The members that these files declare get short names, unless any other file uses the name too. */
function internalNames() {
  const declared = INNER.flatMap((file) =>
    [...code(source(file)).matchAll(/^ {2,4}(?:(?:readonly|protected|override|public|async|get) )*([a-z]\w{3,})\??(?:: |\()/gm)].map(([, name]) => name),
  );
  const others = readdirSync(`${client}src`, { recursive: true }).filter((file) => file.endsWith(".ts") && !INNER.includes(file));
  const seen = new Set([...others.flatMap((file) => code(source(file)).match(/\w+/g)), ...KEPT]);
  return [...new Set(declared)].filter((name) => !seen.has(name));
}

async function publish() {
  const { outputFiles } = await build({
    entryPoints: ["index", "node", "core"].map((name) => `${client}build/${name}.js`),
    outdir: `${client}dist`,
    bundle: true,
    splitting: true,
    write: false,
    format: "esm",
    target: "es2022",
    external: ["node:*"],
    mangleProps: new RegExp(`^(${internalNames().join("|")})$`),
  });
  // What is as it was stays: programs that run may be loading it.
  mkdirSync(`${client}dist`, { recursive: true });
  const kept = outputFiles.map(({ path }) => path);
  for (const name of readdirSync(`${client}dist`)) {
    if (!kept.includes(`${client}dist/${name}`)) rmSync(`${client}dist/${name}`, { recursive: true });
  }
  for (const { path, text } of outputFiles) {
    if (!existsSync(path) || readFileSync(path, "utf8") !== text) writeFileSync(path, text);
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
