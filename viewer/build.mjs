// Bundles src/ into the package's data. With --check it compares instead, and exits with 1 where they differ.
import { build } from "esbuild";
import { readFileSync, writeFileSync, existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "../treeagent/report/viewer");
const entries = { viewer: "src/main.tsx", review: "src/review.tsx" };

const { outputFiles } = await build({
  entryPoints: Object.fromEntries(Object.entries(entries).map(([name, file]) => [name, join(here, file)])),
  absWorkingDir: here,
  outdir: target,
  bundle: true,
  minify: true,
  write: false,
  format: "iife",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "ascii", // a page of any encoding may hold it
  legalComments: "none",
});

let stale = false;
for (const { path, text } of outputFiles) {
  const name = path.slice(target.length + 1);
  if (process.argv.includes("--check")) {
    const same = existsSync(path) && readFileSync(path, "utf8") === text;
    if (!same) console.error(`treeagent/report/viewer/${name} is not what viewer/ gives: run make viewer`);
    stale ||= !same;
  } else {
    writeFileSync(path, text);
    console.log(`${name} ${text.length} bytes, ${gzipSync(text).length} gzipped`);
  }
}
process.exit(stale ? 1 : 0);
