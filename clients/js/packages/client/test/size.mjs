// Prints what a browser loads, in bytes: what a program imports, bundled and minified by esbuild, then compressed.

import { gzipSync, brotliCompressSync } from "node:zlib";
import { build } from "esbuild";

const CLIENT = `export { createSyncClient, createIndexedDbStore`;

const BUNDLES = {
  // Sync state, messages and connection: what talks to the server.
  core: `export { Core } from "@unisono/client/core"`,
  // The whole client: views, drafts, tabs, and its store in IndexedDB.
  storage: `${CLIENT} } from "@unisono/client"`,
  tree: `${CLIENT}, treeModel } from "@unisono/client"`,
  event: `${CLIENT}, eventModel } from "@unisono/client"`,
  presence: `${CLIENT}, presence } from "@unisono/client"`,
};

const sizes = {};
for (const [name, contents] of Object.entries(BUNDLES)) {
  const made = await build({
    stdin: { contents, resolveDir: new URL("./", import.meta.url).pathname },
    bundle: true,
    minify: true,
    write: false,
    format: "esm",
    target: "es2022",
  });
  const text = made.outputFiles[0].contents;
  sizes[name] = { bytes: text.length, gzip: gzipSync(text, { level: 9 }).length, brotli: brotliCompressSync(text).length };
}
console.log(JSON.stringify(sizes));
