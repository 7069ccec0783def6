// A stand-in for the collector while the page is developed: serves dist with the collector's headers and answers the
// API of ../API.md from a generated system. `node test/mock.mjs [--port N] [--nodes N] [--empty-ms N] [--dist DIR]
// [--collector URL]`.
//
// --nodes N      frames of the flame graph (default 12,000; 200,000 for the performance budget)
// --empty-ms N   has no profile for so long after the start, then begins to have some
// --collector U  passes the API's questions on to a running collector: the page under development over real data
import { createServer, request as ask } from 'node:http';
import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { generate } from './generate.mjs';

export const CSP =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; " +
  "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'";
const HEADERS = {
  'content-security-policy': CSP,
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'no-referrer',
  'cross-origin-opener-policy': 'same-origin',
};
const FILES = {
  '/': ['index.html', 'text/html; charset=utf-8'],
  '/explore': ['index.html', 'text/html; charset=utf-8'],
  '/locks': ['index.html', 'text/html; charset=utf-8'],
  '/app.js': ['app.js', 'text/javascript; charset=utf-8'],
  '/app.css': ['app.css', 'text/css; charset=utf-8'],
  '/favicon.svg': ['favicon.svg', 'image/svg+xml'],
};
const here = dirname(fileURLToPath(import.meta.url));

/** Starts the stand-in; resolves to its URL and how to stop it. */
export async function startMock({
  port = 0,
  nodes = 12_000,
  emptyMs = 0,
  dist = join(here, '..', 'dist'),
  collector = null,
} = {}) {
  const answer = collector ? null : generate({ nodes, firstDataAt: Date.now() + emptyMs });
  const server = createServer(async (request, response) => {
    const url = new URL(request.url, 'http://mock');
    const file = FILES[url.pathname];
    if (file) {
      response.writeHead(200, { ...HEADERS, 'content-type': file[1], 'cache-control': 'no-cache' });
      response.end(await readFile(join(dist, file[0])));
      return;
    }
    if (!answer) {
      const passed = ask(new URL(request.url, collector), { headers: { accept: 'application/json' } }, (reply) => {
        response.writeHead(reply.statusCode, { ...HEADERS, 'content-type': reply.headers['content-type'] });
        reply.pipe(response);
      });
      passed.on('error', () => response.destroy());
      passed.end();
      return;
    }
    const reply = answer(url.pathname, url.searchParams);
    const body = JSON.stringify(reply.body);
    response.writeHead(reply.status, { ...HEADERS, 'content-type': 'application/json' });
    response.end(body);
  });
  await new Promise((resolve) => server.listen(port, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    stop: () => new Promise((resolve) => server.close(resolve).closeAllConnections()),
  };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const option = (name, fallback) => {
    const at = process.argv.indexOf(`--${name}`);
    return at < 0 ? fallback : process.argv[at + 1];
  };
  const mock = await startMock({
    port: Number(option('port', 4041)),
    nodes: Number(option('nodes', 12_000)),
    emptyMs: Number(option('empty-ms', 0)),
    collector: option('collector', null),
    ...(option('dist') ? { dist: option('dist') } : {}),
  });
  console.log(mock.url);
}
