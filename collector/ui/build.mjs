// Builds the page: `node build.mjs [OUT]` writes index.html, app.js, app.css, favicon.svg and SOURCE_HASH
// to OUT (default: dist beside this file). The same sources give the same bytes in every folder.
//
// README of SOURCE_HASH. It proves, without Node, that dist was built from the sources beside it:
//   files  = every regular file below src/ (recursive), and build.mjs and package-lock.json;
//   path   = relative to collector/ui, with '/' between the parts; sorted by the bytes of its UTF-8;
//   digest = SHA-256 over, for each file in that order: path, one 0 byte, the length of the file in bytes as
//            decimal ASCII, one 0 byte, the bytes of the file;
//   SOURCE_HASH = the digest in 64 lower-case hexadecimal digits and one newline.
//
// index.html names app.js and app.css with `?v=` and the first 16 hexadecimal digits of the SHA-256 of their
// bytes, so that they may be cached for ever while index.html is revalidated.
import { createHash } from 'node:crypto';
import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import * as esbuild from 'esbuild';

const root = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(root, 'dist');

const sha256 = (...parts) => parts.reduce((hash, part) => hash.update(part), createHash('sha256')).digest('hex');

async function sourceHash() {
  const below = await readdir(join(root, 'src'), { recursive: true, withFileTypes: true });
  const paths = below
    .filter((entry) => entry.isFile())
    .map((entry) =>
      relative(root, join(entry.parentPath ?? entry.path, entry.name))
        .split(sep)
        .join('/'),
    )
    .concat('build.mjs', 'package-lock.json')
    .sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
  const parts = [];
  for (const path of paths) {
    const bytes = await readFile(join(root, path));
    parts.push(path, '\0', String(bytes.length), '\0', bytes);
  }
  return sha256(...parts);
}

/** Bundles one entry point; every option that shapes the output stands here, tsconfig.json shapes only checks. */
async function bundle(entry) {
  const result = await esbuild.build({
    absWorkingDir: root,
    entryPoints: [entry],
    bundle: true,
    write: false,
    minify: true,
    charset: 'utf8',
    format: 'iife',
    target: ['es2022', 'chrome123', 'firefox120', 'safari17.5'],
    jsx: 'automatic',
    jsxImportSource: 'preact',
    legalComments: 'none',
    tsconfigRaw: {},
    logLevel: 'warning',
  });
  return result.outputFiles[0].text;
}

const [page, worker, style] = await Promise.all(['src/main.tsx', 'src/worker.ts', 'src/style/app.css'].map(bundle));
// One script of two: a worker has no document, and must not run the page.
const script = `if(typeof document==="undefined"){${worker}}else{${page}}\n`;
const template = await readFile(join(root, 'src/index.html'), 'utf8');
const html = template
  .replace('@@SCRIPT@@', `/app.js?v=${sha256(script).slice(0, 16)}`)
  .replace('@@STYLE@@', `/app.css?v=${sha256(style).slice(0, 16)}`);

await mkdir(out, { recursive: true });
await Promise.all([
  writeFile(join(out, 'app.js'), script),
  writeFile(join(out, 'app.css'), style),
  writeFile(join(out, 'index.html'), html),
  writeFile(join(out, 'favicon.svg'), await readFile(join(root, 'src/favicon.svg'))),
  writeFile(join(out, 'SOURCE_HASH'), `${await sourceHash()}\n`),
]);
