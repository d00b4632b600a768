// Bundles src/ into the package's data. With --check it compares instead, and exits with 1 where they differ.
//
// It also writes bundle.sha256 with the hashes of every source and of what was made of them, for those without Node:
// sha256sum --check viewer/bundle.sha256, at the root of the repository.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync, existsSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "../treeagent/contrib/viewer");
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

const sources = ["build.mjs", "package.json", "package-lock.json", ...readdirSync(join(here, "src")).map((name) => `src/${name}`)];
const hashed = (path, content) => `${createHash("sha256").update(content).digest("hex")}  ${relative(join(here, ".."), path)}\n`;
const sums = [
  ...sources.map((name) => join(here, name)).map((path) => hashed(path, readFileSync(path))),
  ...outputFiles.map(({ path, text }) => hashed(path, text)),
];
const written = [...outputFiles, { path: join(here, "bundle.sha256"), text: sums.sort((a, b) => (a.slice(66) < b.slice(66) ? -1 : 1)).join("") }];

let stale = false;
for (const { path, text } of written) {
  const name = relative(join(here, ".."), path);
  if (process.argv.includes("--check")) {
    const same = existsSync(path) && readFileSync(path, "utf8") === text;
    if (!same) console.error(`${name} is not what viewer/ gives: run make viewer`);
    stale ||= !same;
  } else {
    writeFileSync(path, text);
    console.log(`${name} ${text.length} bytes, ${gzipSync(text).length} gzipped`);
  }
}
process.exit(stale ? 1 : 0);
