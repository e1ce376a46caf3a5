// Compiles the packages, checks their types, and bundles the client for the demo that the server's package contains.

import { execFileSync } from "node:child_process";
import { build } from "esbuild";

const here = new URL("./", import.meta.url).pathname;
execFileSync(process.execPath, [`${here}node_modules/typescript/bin/tsc`, "--build", here], { stdio: "inherit" });

await build({
  entryPoints: [`${here}packages/client/dist/index.js`],
  outfile: process.argv[2] ?? `${here}../../src/unisono/demo/static/client.js`,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "none",
  banner: { js: "// @unisono/client, built from clients/js by `npm run build`. Do not edit." },
});
