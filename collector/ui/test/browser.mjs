// The page in a real browser: `node test/browser.mjs [--perf]`. Prints one line and exits with 1 on failure.
//
// VESTA_BASE_URL          a running collector; default: the stand-in of mock.mjs, started here
// VESTA_EXPECT_FUNCTIONS  names, separated by commas, that its profile must show
// VESTA_EXPECT_SERVICE    a service that the services page must list
// VESTA_EXPECT_EMPTY=1    the collector has no profile yet and gets its first one during this run: the waiting page
//                         must turn into the graph by itself
// VESTA_EXPECT_LOCK       a lock that the locks page must list first; its profile must have off-CPU time, too
// VESTA_WAIT_MS           how long to wait for data, default 20000
// VESTA_CHROMIUM          the browser, default /usr/bin/chromium
// --perf                  measures the budgets below against the stand-in with 200,000 frames, prints a line `figure: …` for
//                         each, and fails beyond them
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { chromium } from 'playwright-core';
import { startMock } from './mock.mjs';

const WAIT_MS = Number(process.env.VESTA_WAIT_MS ?? 20_000);
const ARGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];
const VIEWPORT = { width: 1440, height: 900 };
const AXE = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const BUDGET = { script_gzip_bytes: 60_000, first_paint_ms: 1000, zoom_frame_p95_ms: 34, search_ms: 60 };

const failures = [];
let checks = 0;
function expect(condition, what) {
  checks += 1;
  if (!condition) failures.push(what);
}

/** A page that reports what it must never do; `quiet` pages are allowed failed requests. */
async function open(browser, base, { quiet = false, dark = false } = {}) {
  const context = await browser.newContext({ viewport: VIEWPORT, colorScheme: dark ? 'dark' : 'light' });
  await context.addInitScript(() => {
    globalThis.violations = [];
    addEventListener('securitypolicyviolation', (event) =>
      globalThis.violations.push(`${event.violatedDirective} ${event.blockedURI}`),
    );
  });
  const page = await context.newPage();
  page.setDefaultTimeout(WAIT_MS);
  const host = new URL(base).host;
  page.on('pageerror', (error) => failures.push(`script error: ${error.message}`));
  page.on('console', (message) => {
    if (message.type() === 'error' && !quiet) failures.push(`console: ${message.text()}`);
  });
  page.on('request', (request) => {
    const url = new URL(request.url());
    if (url.protocol.startsWith('http') && url.host !== host) failures.push(`request to another host: ${url.host}`);
  });
  const close = async () => {
    const violations = await page.evaluate(() => globalThis.violations ?? []);
    expect(violations.length === 0, `CSP violations: ${violations.join('; ')}`);
    await context.close();
  };
  return { page, close };
}

/** There is a tree, and it has been drawn. */
const flameShown = (page) =>
  page.waitForFunction(
    () =>
      Number(document.querySelector('.flame')?.getAttribute('data-nodes') ?? 0) > 1 &&
      performance.getEntriesByName('vesta:flame').length > 0,
  );

/** How many colours the middle column strip of the flame graph has: an undrawn canvas has one. */
const coloursOf = (page) =>
  page.evaluate(() => {
    const canvas = document.querySelector('.flame canvas');
    const { width, height } = canvas;
    const { data } = canvas.getContext('2d').getImageData(0, 0, width, Math.min(height, 200));
    const colours = new Set();
    for (let i = 0; i < data.length; i += 4) colours.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
    return colours.size;
  });

/** Full names of the rows in sight: what is shown may be shortened. */
const namesOfTable = (page) =>
  page
    .locator('.top-table tbody td.col-name button')
    .evaluateAll((buttons) => buttons.map((button) => button.title.split('\n')[0]));

async function search(page, text) {
  await page.fill('.search input', text);
  // Two frames: one to search and draw, one to show.
  await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
}

async function checkHeaders(page, base) {
  const response = await page.goto(`${base}/`);
  const headers = response.headers();
  const csp = headers['content-security-policy'] ?? '';
  for (const part of [
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
    "require-trusted-types-for 'script'",
  ]) {
    expect(csp.includes(part), `the policy lacks ${part}`);
  }
  expect(!/unsafe|\*|https?:/.test(csp), `the policy is loose: ${csp}`);
  expect(headers['x-content-type-options'] === 'nosniff', 'X-Content-Type-Options is not nosniff');
  expect(headers['referrer-policy'] === 'no-referrer', 'Referrer-Policy is not no-referrer');
}

async function checkServices(page, base, service) {
  await page.goto(`${base}/`);
  await page.waitForSelector('.services-table tbody tr');
  await checkAccessibility(page, 'Services');
  const names = await page.locator('.services-table tbody th').allTextContents();
  if (service) expect(names.includes(service), `service ${service} is not among ${names.slice(0, 10).join(', ')}`);
  await page.keyboard.press('/');
  await page.keyboard.type(names[0]);
  await page.waitForFunction((url) => new URL(location.href).searchParams.get('service') === url, names[0]);
  await page.locator('.services-table tbody th a').getByText(names[0], { exact: true }).first().click();
  await flameShown(page);
  expect(new URL(page.url()).pathname === '/explore', 'a row does not lead to Explore');
  expect((await page.locator('.chip-value').first().textContent()) === names[0], 'the service is not the filter');
  await page.goBack();
  await page.waitForSelector('.services-table');
}

async function checkFunctions(page, base, names) {
  await page.goto(`${base}/explore?refresh=0`);
  await flameShown(page);
  expect((await coloursOf(page)) > 4, 'the flame graph is not drawn');
  for (const name of names) {
    await search(page, name);
    const result = (await page.locator('.search-result').textContent()) ?? '';
    expect(
      /^≥?[<>\d].*of total matches/.test(result) && !/^≥?0\u00a0%/.test(result),
      `${name} is not in the flame graph (“${result}”)`,
    );
    const rows = await namesOfTable(page);
    expect(
      rows.some((row) => row.includes(name)),
      `${name} is not in the table`,
    );
  }
}

async function checkZoom(page, name) {
  await search(page, name);
  await page.press('.search input', 'Enter');
  await page.waitForFunction((text) => document.querySelector('.detail .spoken')?.textContent?.includes(text), name);
  await page.focus('.flame-scroll');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => new URL(location.href).searchParams.has('root'));
  const here = (await page.locator('.path [aria-current]').getAttribute('title')) ?? '';
  expect(here.includes(name), `zoomed to ${here} instead of ${name}`);
  const link = page.url();
  await page.goBack();
  await page.waitForFunction(() => !new URL(location.href).searchParams.has('root'));
  await page.goto(link);
  await flameShown(page);
  await page.waitForSelector('.path [aria-current]');
  expect(
    ((await page.locator('.path [aria-current]').getAttribute('title')) ?? '').includes(name),
    'a link to a zoomed frame does not lead there',
  );
  await page.locator('.search input').blur();
  await page.keyboard.press('Escape');
  await page.keyboard.press('0');
  await page.waitForFunction(
    () => !new URL(location.href).searchParams.has('root') && !new URL(location.href).searchParams.has('find'),
  );
  // With the pointer: second row, left.
  await page.waitForTimeout(300);
  const box = await page.locator('.flame canvas').first().boundingBox();
  await page.mouse.move(box.x + 30, box.y + 28);
  await page.waitForSelector('.tooltip');
  const pointed = await page.locator('.tooltip-name').textContent();
  await page.mouse.click(box.x + 30, box.y + 28);
  await page.waitForSelector('.path [aria-current]');
  expect(
    (await page.locator('.path [aria-current]').getAttribute('title')) === pointed,
    'a click zooms to another frame than the one pointed at',
  );
  await page.keyboard.press('0');
  await page.waitForFunction(() => !new URL(location.href).searchParams.has('root'));
}

async function checkSearch(page) {
  let asked = 0;
  page.on('request', (request) => {
    if (request.url().includes('/flamegraph')) asked += 1;
  });
  const before = asked;
  await page.fill('.search input', '');
  await page.type('.search input', 'main');
  await page.click('.regex');
  await page.fill('.search input', '^.*$');
  await page.waitForFunction(() => document.querySelector('.search-result')?.textContent?.includes('100'));
  // Catastrophic backtracking must cost the search, not the page.
  await page.fill('.search input', '((((.*)*)*)*)*(?!.)#');
  await page.waitForFunction(() => !document.querySelector('.search-result')?.textContent?.includes('100'));
  await page.fill('.search input', '(');
  await page.waitForSelector('.search-result .problem');
  await page.click('.regex');
  await page.fill('.search input', '');
  expect(asked === before, 'typing a search asks the collector again');
}

/** What was lost or cut is a quiet share; its reasons come on demand, and stay readable. */
async function checkLosses(page, must) {
  const losses = page.locator('.losses');
  // A running collector may be lucky and have lost nothing.
  if (!must && (await losses.count()) === 0) return;
  const said = await losses.locator('summary').textContent();
  expect(/\d\s%\s(cut|lost)/.test(said), `losses read ${said}`);
  expect(!(await losses.locator('.popover').isVisible()), 'the reasons for losses are shown unasked');
  await losses.locator('summary').click();
  expect(await losses.locator('.popover dd').first().isVisible(), 'no reason for losses is shown');
  await checkAccessibility(page, 'the reasons for losses');
  await losses.locator('summary').click();
}

async function checkBrush(page) {
  const box = await page.locator('.timeline .u-over').boundingBox();
  const narrowed = page.waitForRequest((request) => /\/flamegraph\?.*from=\d+/.test(request.url()));
  await page.mouse.move(box.x + box.width * 0.3, box.y + 40);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.99, box.y + 50, { steps: 6 });
  await page.mouse.up();
  await narrowed;
  await page.waitForFunction(() => new URL(location.href).searchParams.has('sel'));
  await page.click('.timeline-when .clear');
  await page.waitForFunction(() => !new URL(location.href).searchParams.has('sel'));
  await flameShown(page);
}

async function checkRest(page) {
  await checkAccessibility(page, 'Explore');
  await page.keyboard.press('?');
  await page.waitForSelector('dialog[open]');
  await checkAccessibility(page, 'the list of keys');
  await page.keyboard.press('Escape');
  await page.waitForSelector('dialog[open]', { state: 'detached' });
  const before = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.keyboard.press('t');
  await page.waitForFunction((old) => getComputedStyle(document.body).backgroundColor !== old, before);
  await checkAccessibility(page, 'Explore in the other colours');
  for (const view of ['flame', 'table', null]) {
    await page.keyboard.press('v');
    await page.waitForFunction((wanted) => new URL(location.href).searchParams.get('view') === wanted, view);
  }
  expect((await page.locator('img, iframe, style, script:not([src])').count()) === 0, 'markup from data');
}

/** The rules of accessibility that a program can check, on the page as it stands. */
async function checkAccessibility(page, what) {
  await page.evaluate(AXE);
  const faults = await page.evaluate(async () =>
    (await globalThis.axe.run()).violations.map((rule) => `${rule.id}: ${rule.nodes[0].target}`),
  );
  expect(faults.length === 0, `${what} is not accessible: ${faults.join('; ')}`);
}

/** Time that threads waited: in words, by reason, a reason alone. */
async function checkWaits(page, base) {
  await page.goto(`${base}/explore?refresh=0`);
  await flameShown(page);
  const picker = page.locator('select.type');
  expect(
    (await picker.locator('option').allTextContents()).includes('Off-CPU time'),
    'the types lack off-CPU time in plain words',
  );
  await picker.selectOption('off_cpu');
  await page.waitForSelector('.reasons button');
  const said = await page.locator('.status > b').textContent();
  expect(/^[<\d.,]+\u00a0waiting threads$/.test(said), `off-CPU time reads ${said}`);
  expect(
    (await page.locator('.timeline-unit').textContent()) === 'threads',
    'the unit of the time line is not threads',
  );
  await checkAccessibility(page, 'off-CPU time');
  // The colour of the legend is in the picture.
  const button = page.locator('.reasons button').first();
  const colour = await button.locator('.kind').evaluate((one) => getComputedStyle(one).backgroundColor);
  const drawn = await page.evaluate((wanted) => {
    const canvas = document.querySelector('.flame canvas');
    const { width, height } = canvas;
    const { data } = canvas.getContext('2d').getImageData(0, 0, width, height);
    const [r, g, b] = wanted.match(/\d+/g).map(Number);
    let pixels = 0;
    for (let i = 0; i < data.length; i += 4) if (data[i] === r && data[i + 1] === g && data[i + 2] === b) pixels += 1;
    return pixels;
  }, colour);
  expect(drawn > 100, `${drawn} pixels have the colour of the first reason`);
  const reason = (await button.textContent()).trim().split(/\s/)[0];
  const asked = page.waitForRequest(
    (request) =>
      /\/flamegraph\?/.test(request.url()) &&
      /reason/.test(decodeURIComponent(request.url()).split('filter=')[1] ?? ''),
  );
  await button.click();
  await asked;
  await page.waitForFunction(() => document.querySelectorAll('.reasons button').length === 1);
  expect((await page.locator('.reasons button').textContent()).trim().startsWith(reason), 'another reason is shown');
  await page.locator('.reasons button').click();
  await page.waitForFunction(() => !new URL(location.href).searchParams.has('q'));
}

/** The locks page: most waited for first, a way to its flame graph, and back. */
async function checkLocks(page, base, lock) {
  await page.goto(`${base}/explore?refresh=0`);
  await flameShown(page);
  await page.locator('.topbar nav a', { hasText: 'Locks' }).click();
  await page.waitForSelector('.locks-table tbody tr');
  expect(new URL(page.url()).pathname === '/locks', 'the locks page has another address');
  const row = page.locator('.locks-table tbody tr').first();
  const name = (await row.locator('th a').textContent()).trim();
  if (lock) expect(name === lock, `the first lock is ${name}, not ${lock}`);
  expect((await row.locator('.callers li').count()) >= 2, 'the first lock has no waiter, or no holder');
  expect((await page.locator('.locks-table tbody img').count()) === 0, 'markup from the name of a lock');
  await checkAccessibility(page, 'Locks');
  const before = await page.locator('.locks-table tbody tr').count();
  await page.keyboard.press('/');
  await page.keyboard.type(name.slice(0, 6));
  await page.waitForFunction((rows) => document.querySelectorAll('.locks-table tbody tr').length < rows, before);
  await row.locator('th a').click();
  await flameShown(page);
  const { searchParams, pathname } = new URL(page.url());
  expect(pathname === '/explore' && searchParams.get('type') === 'lock', 'a lock does not lead to its flame graph');
  const chips = await page.locator('.chip-value').allTextContents();
  expect(chips.includes(name), `the filter of ${name} is ${chips.join(', ')}`);
  expect(
    /waiting threads$/.test(await page.locator('.status > b').textContent()),
    'lock waits are not waiting threads',
  );
  await page.goBack();
  await page.waitForSelector('.locks-table tbody tr');
}

/** What a failing collector looks like: message and hint above the old graph. */
async function checkFailures(browser, base) {
  const { page, close } = await open(browser, base, { quiet: true });
  await page.goto(`${base}/explore?refresh=0`);
  await flameShown(page);
  const nodes = await page.locator('.flame').getAttribute('data-nodes');
  await page.route('**/flamegraph?*', (route) =>
    route.fulfill({
      status: 503,
      contentType: 'application/json',
      body: JSON.stringify({
        error: { code: 'busy', message: 'Too many queries.', hint: 'Ask again in a second.', request_id: 'r1' },
      }),
    }),
  );
  await page.keyboard.press('r');
  await page.waitForSelector('.notice.problem');
  const text = (await page.locator('.notice.problem').textContent()) ?? '';
  expect(
    text.includes('Too many queries.') && text.includes('Ask again in a second.'),
    `an error without its hint: ${text}`,
  );
  expect((await page.locator('.flame').getAttribute('data-nodes')) === nodes, 'an error takes the old graph away');
  await page.unroute('**/flamegraph?*');
  await page.waitForSelector('.notice.problem', { state: 'detached' });
  await close();
}

/** The waiting page turns into the graph. */
async function checkFirstRun(browser, base) {
  const { page, close } = await open(browser, base);
  await page.goto(`${base}/`);
  await page.waitForSelector('.waiting');
  const text = (await page.locator('.empty').textContent()) ?? '';
  expect(
    text.includes('sudo vesta local') && text.includes('waiting for first profile'),
    'the first-run page lacks its command',
  );
  await flameShown(page);
  await close();
}

/** Names that could deceive or run: shown escaped, never as markup. Only the stand-in has one. */
async function checkHostileName(page, base) {
  await page.goto(`${base}/explore?find=gpj.elif`);
  await flameShown(page);
  await page.waitForSelector('.top-table tbody td.col-name button');
  const [row] = await namesOfTable(page);
  expect(row === '\\u{202e}gpj.elif<img src=x onerror=alert(1)>', `a hostile name shows as ${row}`);
}

async function perf(browser) {
  const mock = await startMock({ nodes: 200_000 });
  const figures = {};
  try {
    const script = await readFile(join(dirname(fileURLToPath(import.meta.url)), '..', 'dist', 'app.js'));
    figures.script_gzip_bytes = gzipSync(script, { level: 9 }).length;
    const address = `${mock.url}/explore?view=flame&refresh=0&nodes=200000`;
    const warm = await open(browser, mock.url);
    await warm.page.goto(address);
    await flameShown(warm.page);
    await warm.close();
    const { page, close } = await open(browser, mock.url);
    await page.setViewportSize({ width: 1600, height: 1000 });
    await page.goto(address);
    await flameShown(page);
    figures.nodes = Number(await page.locator('.flame').getAttribute('data-nodes'));
    figures.first_paint_ms = await page.evaluate(
      () =>
        new Promise((resolve) => {
          const look = () => {
            const [mark] = performance.getEntriesByName('vesta:flame');
            if (mark) resolve(Math.round(mark.startTime));
            else requestAnimationFrame(look);
          };
          look();
        }),
    );
    await page.waitForTimeout(500);
    const box = await page.locator('.flame canvas').first().boundingBox();
    await page.evaluate(() => {
      globalThis.frames_ms = [];
      let last = performance.now();
      const count = (now) => {
        globalThis.frames_ms.push(now - last);
        last = now;
        requestAnimationFrame(count);
      };
      requestAnimationFrame(count);
    });
    for (let i = 0; i < 6; i += 1) {
      await page.mouse.click(box.x + 200 + i * 150, box.y + 90);
      await page.waitForTimeout(190);
      await page.keyboard.press('0');
      await page.waitForTimeout(190);
    }
    const frames = (await page.evaluate(() => globalThis.frames_ms)).slice(1).sort((a, b) => a - b);
    figures.zoom_frame_p95_ms = Number(frames[Math.floor(frames.length * 0.95)].toFixed(1));
    figures.zoom_frames = frames.length;
    const times = [];
    for (const text of ['Exec', 'json', 'index::', 'sys', 'alloc']) {
      times.push(
        await page.evaluate(
          (value) =>
            new Promise((resolve) => {
              const field = document.querySelector('.search input');
              field.value = value;
              const begun = performance.now();
              field.dispatchEvent(new Event('input', { bubbles: true }));
              requestAnimationFrame(() => {
                const channel = new MessageChannel();
                channel.port1.onmessage = () => resolve(performance.now() - begun);
                channel.port2.postMessage(0);
              });
            }),
          text,
        ),
      );
    }
    figures.search_ms = Number(times.sort((a, b) => a - b)[2].toFixed(1));
    await close();
  } finally {
    await mock.stop();
  }
  for (const [name, most] of Object.entries(BUDGET))
    expect(figures[name] <= most, `${name} is ${figures[name]}, budget ${most}`);
  return figures;
}

const executablePath = process.env.VESTA_CHROMIUM ?? '/usr/bin/chromium';
const browser = await chromium.launch({ executablePath, args: ARGS });
const own = process.env.VESTA_BASE_URL ? null : await startMock();
const base = (process.env.VESTA_BASE_URL ?? own.url).replace(/\/$/, '');
const listed = (
  process.env.VESTA_EXPECT_FUNCTIONS ?? (own ? 'PostgresMain,index::Searcher::Search,encoding/json.Unmarshal' : '')
)
  .split(',')
  .map((name) => name.trim())
  .filter((name) => name !== '');
let figures = null;
let step = 'start';
try {
  if (process.argv.includes('--perf')) {
    step = 'perf';
    figures = await perf(browser);
  } else {
    if (process.env.VESTA_EXPECT_EMPTY === '1') {
      step = 'first run';
      await checkFirstRun(browser, base);
    }
    const { page, close } = await open(browser, base);
    const run = async (name, work) => {
      step = name;
      await work();
    };
    await run('headers', () => checkHeaders(page, base));
    await run('services', () => checkServices(page, base, process.env.VESTA_EXPECT_SERVICE ?? (own ? 'postgres' : '')));
    await run('functions', () => checkFunctions(page, base, listed));
    if (listed[0]) await run('zoom', () => checkZoom(page, listed[0]));
    await run('search', () => checkSearch(page));
    await run('brush', () => checkBrush(page));
    await run('losses', () => checkLosses(page, own !== null));
    await run('keys and themes', () => checkRest(page));
    const lock = process.env.VESTA_EXPECT_LOCK ?? (own ? 'MainLWLockArray+0x1a80' : '');
    if (lock) await run('waits', () => checkWaits(page, base));
    if (lock) await run('locks', () => checkLocks(page, base, lock));
    if (own) await run('hostile name', () => checkHostileName(page, base));
    await close();
    step = 'failures';
    await checkFailures(browser, base);
    if (own) {
      step = 'first run';
      const late = await startMock({ emptyMs: 3000 });
      await checkFirstRun(browser, late.url);
      await late.stop();
    }
  }
} catch (error) {
  failures.push(`${step}: ${error instanceof Error ? error.message.split('\n')[0] : error}`);
} finally {
  await browser.close();
  await own?.stop();
}
for (const [name, value] of Object.entries(figures ?? {})) console.log(`figure: page ${name} ${value}`);
const summary = figures
  ? Object.entries(figures)
      .map(([name, value]) => `${name} ${value}`)
      .join(', ')
  : `${checks} checks, ${listed.length} functions, ${base}`;
console.log(failures.length === 0 ? `page ok: ${summary}` : `page FAILED: ${failures.join(' | ')} (${summary})`);
process.exitCode = failures.length === 0 ? 0 : 1;
