// The waiting side of the generated system: why its threads wait, and the locks that they wait for.

/** The label whose values are reasons. */
export const REASON = 'off_cpu.reason';
export const REASONS = [
  'sleep',
  'poll',
  'condvar',
  'io',
  'lock',
  'park',
  'futex',
  'page_fault',
  'semaphore',
  'preempted',
  'other',
];
/** Threads that wait for each core in use. */
export const THREADS_PER_CORE = 3.4;

const SHARES = REASONS.map((_, i) => 1 / (i + 1.6) ** 1.5);
const WHOLE = SHARES.reduce((a, b) => a + b, 0);
/** Share of a reason in all waiting. */
export const shareOf = (reason) => (SHARES[REASONS.indexOf(reason)] ?? 0) / WHOLE;

const reasonFrames = new Map(
  REASONS.map((name) => [name, { name, kind: 'abort-marker', module: REASON, file: '', line: 0 }]),
);

/** Adds to each stack's end the reasons of `chosen` that it waits for. */
export function withReasons(root, chosen) {
  let at = 0;
  const walk = (node) => {
    const children = new Map([...node.children].map(([fn, child]) => [fn, walk(child)]));
    const copy = { fn: node.fn, children, self: 0 };
    for (let i = 0; node.self > 0 && i < chosen.length; i += 1) {
      // Each stack waits mostly for one thing.
      const reason = chosen[(at + i) % chosen.length];
      if (i > 1) break;
      const part = i === 0 ? 0.8 : 0.2;
      children.set(reasonFrames.get(reason), {
        fn: reasonFrames.get(reason),
        children: new Map(),
        self: node.self * part * shareOf(reason) * REASONS.length,
      });
    }
    at += 1;
    return copy;
  };
  return walk(root);
}

const MS = 1_000_000;
const fn = (name, kind, module, stack) => ({
  name,
  kind,
  module,
  file: '',
  line: 0,
  named: true,
  stack: [name, ...stack],
});

/** Locks, longest wait first; figures are of a range of `seconds`. */
export function locksOf(services, seconds, limit) {
  const named = new Map(services.map((one) => [one.service, one]));
  const row = (service, lock, kind, perSecond, contentions, waiters, holders, more = {}) => ({
    lock,
    place: more.pid ? 'address' : 'static',
    kind,
    service,
    services: more.services ?? 1,
    executable: named.get(service)?.executable ?? service,
    host: more.pid ? 'vesta-dev' : '',
    pid: more.pid ?? '',
    wait_ns: Math.round(perSecond * seconds * MS),
    contentions: Math.round(contentions * seconds),
    holder_samples: Math.round(seconds * 4 * holders.length),
    mean_ns: contentions > 0 ? Math.round((perSecond / contentions) * MS) : null,
    threads: perSecond / 1000,
    waiters: waiters.map((one, i) => ({
      ...one,
      wait_ns: Math.round((perSecond * seconds * MS) / 2 ** (i + 1)),
      contentions: Math.round((contentions * seconds) / 2 ** (i + 1)),
    })),
    holders: holders.map((one, i) => ({ ...one, samples: Math.round((seconds * 4 * holders.length) / 2 ** (i + 1)) })),
    other_callers: { wait_ns: 0, contentions: 0, holder_samples: 0 },
    filter: `{service="${service}","lock.${more.pid ? 'address' : 'name'}"="${lock}"}`,
  });
  const pg = (name, ...stack) => fn(name, 'native', 'postgres', [...stack, 'PostgresMain', 'ServerLoop', 'main']);
  const go = (name, ...stack) => fn(name, 'go', 'checkout', [...stack, 'net/http.(*conn).serve', 'runtime.goexit']);
  const all = [
    row(
      'postgres',
      'MainLWLockArray+0x1a80',
      'rwlock',
      412,
      96,
      [pg('LWLockAcquire', 'BufferAlloc'), pg('XLogInsertRecord')],
      [pg('WALWriteLock', 'XLogFlush'), pg('BufTableInsert')],
    ),
    row(
      'checkout',
      '0xc0004a2018',
      'mutex',
      233,
      1900,
      [go('main.(*Cart).Add'), go('main.(*Cart).Total', 'main.(*Handler).Checkout')],
      [go('encoding/json.Unmarshal', 'main.(*Cart).Add')],
      { pid: '4711' },
    ),
    row(
      'postgres',
      'libc.so.6+0x1f2c60',
      'mutex',
      61,
      5400,
      [fn('malloc', 'native', 'libc.so.6', ['palloc', 'main'])],
      [],
      {
        services: 7,
      },
    ),
    row('checkout', '0x7f3a10', 'monitor', 9, 0, [], [], { pid: '4712' }),
    row(
      'checkout',
      '\u202egpj.elif<img src=x onerror=alert(1)>',
      'unknown',
      2,
      1,
      [fn('\u202ekcatta', 'native', 'x', ['main'])],
      [],
    ),
  ].filter((one) => named.has(one.service));
  const sum = (rows) => ({
    wait_ns: rows.reduce((a, one) => a + one.wait_ns, 0),
    contentions: rows.reduce((a, one) => a + one.contentions, 0),
    holder_samples: rows.reduce((a, one) => a + one.holder_samples, 0),
  });
  const rows = all.slice(0, limit);
  const others = { wait_ns: Math.round(3 * seconds * MS), contentions: Math.round(seconds), holder_samples: 0 };
  const total = sum(all);
  return {
    locks: all.length + 12,
    total: {
      wait_ns: total.wait_ns + others.wait_ns,
      contentions: total.contentions + others.contentions,
      holder_samples: total.holder_samples,
    },
    rows,
    others: { locks: 12, ...others },
    warnings: [],
  };
}
