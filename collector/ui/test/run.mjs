// Runs the tests of the pure modules: bundles each test/*.test.ts with its sources, then node --test over the bundles.
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { spawn } from 'node:child_process';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import * as esbuild from 'esbuild';

const here = dirname(fileURLToPath(import.meta.url));
const tests = (await readdir(here)).filter((name) => name.endsWith('.test.ts')).sort();
const out = await mkdtemp(join(tmpdir(), 'vesta-ui-test-'));
try {
  await esbuild.build({
    entryPoints: tests.map((name) => join(here, name)),
    outdir: out,
    outExtension: { '.js': '.mjs' },
    bundle: true,
    format: 'esm',
    platform: 'node',
    sourcemap: 'inline',
    logLevel: 'warning',
  });
  const files = tests.map((name) => join(out, name.replace(/\.ts$/, '.mjs')));
  const node = spawn(process.execPath, ['--enable-source-maps', '--test', ...files], { stdio: 'inherit' });
  process.exitCode = await new Promise((resolve) => node.on('close', (code) => resolve(code ?? 1)));
} finally {
  await rm(out, { recursive: true, force: true });
}
