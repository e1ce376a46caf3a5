// Prints what a browser loads, in bytes: bundled, minified and compressed, for several choices of parts.

import { gzipSync, brotliCompressSync } from "node:zlib";
import { build } from "esbuild";

const dist = new URL("../dist/", import.meta.url).pathname;

const BUNDLES = {
  // Sync state, messages and connection: what talks to the server.
  core: `export { Core } from "./core.js"`,
  // The whole client: views, drafts, tabs, and its store in IndexedDB.
  storage: `export { createSyncClient, createIndexedDbStore } from "./index.js"`,
  tree: `export { createSyncClient, createIndexedDbStore, treeModel } from "./index.js"`,
  event: `export { createSyncClient, createIndexedDbStore, eventModel } from "./index.js"`,
  presence: `export { createSyncClient, createIndexedDbStore, presence } from "./index.js"`,
};

const sizes = {};
for (const [name, contents] of Object.entries(BUNDLES)) {
  const made = await build({
    stdin: { contents, resolveDir: dist },
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
