// Prints what a browser loads, in bytes: what a program imports, bundled and minified by esbuild, then compressed file by
// file. What is loaded later, and only where it is needed, is counted as `later`.

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
  transactions: `${CLIENT}, transactions } from "@unisono/client"`,
  renewal: `${CLIENT}, renewal } from "@unisono/client"`,
  history: `${CLIENT}, history } from "@unisono/client"`,
  undo: `${CLIENT}, treeModel, treeUndo } from "@unisono/client"`,
};

const sizes = {};
for (const [name, contents] of Object.entries(BUNDLES)) {
  const { metafile, outputFiles } = await build({
    stdin: { contents, resolveDir: new URL("./", import.meta.url).pathname },
    bundle: true,
    minify: true,
    splitting: true,
    metafile: true,
    write: false,
    outdir: "/out",
    format: "esm",
    target: "es2022",
  });
  const first = new Set();
  const follow = (path) => {
    first.add(path);
    for (const { path: next, kind } of metafile.outputs[path].imports) {
      if (kind === "import-statement" && !first.has(next)) follow(next);
    }
  };
  follow(Object.keys(metafile.outputs).find((path) => metafile.outputs[path].entryPoint === "<stdin>"));
  const size = { bytes: 0, gzip: 0, brotli: 0, later: 0 };
  for (const { path, contents: text } of outputFiles) {
    const brotli = brotliCompressSync(text).length;
    if (![...first].some((each) => path.endsWith(each.split("/").at(-1)))) size.later += brotli;
    else {
      size.bytes += text.length;
      size.gzip += gzipSync(text, { level: 9 }).length;
      size.brotli += brotli;
    }
  }
  sizes[name] = size;
}
console.log(JSON.stringify(sizes));
