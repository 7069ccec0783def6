import assert from 'node:assert/strict';
import { test } from 'node:test';
import * as format from '../src/format.ts';
import type { Losses } from '../src/api.ts';
import { amount, amountCell, lossesText, rateUnit } from '../src/figures.ts';
import { cut, shortName, visible } from '../src/names.ts';
import { formatSelector, parseSelector, withMatcher } from '../src/selector.ts';
import { groupOf, REASON_LABEL, reasonName } from '../src/palette.ts';
import {
  decode,
  DEFAULTS,
  encode,
  exploreOf,
  hasReasons,
  locksOf,
  servicesOf,
  typeOf,
  type ViewState,
} from '../src/url.ts';

const plain = (text: string) => text.replaceAll('\u00a0', ' ');

function check<T>(convert: (given: T) => string, rows: readonly (readonly [T, string])[]): void {
  for (const [given, wanted] of rows) assert.equal(plain(convert(given)), wanted, String(given));
}

test('cores have three significant digits', () => {
  check(format.cores, [
    [0, '0 cores'],
    [11.42, '11.4 cores'],
    [1, '1.00 cores'],
    [0.9996, '1.00 cores'],
    [9.996, '10.0 cores'],
    [99.96, '100 cores'],
    [0.0834, '83.4 mcores'],
    [0.00012, '0.120 mcores'],
    [0.00002, '<0.1 mcores'],
    [1234.5, '1,235 cores'],
    [-2.5, '−2.50 cores'],
  ]);
  check(format.coresCell, [
    [0.0834, '0.0834'],
    [3.1, '3.10'],
    [0.00001, '<0.0001'],
    [0, '0'],
  ]);
});

test('time over time is a number of cores or of waiting threads', () => {
  const scale = { unit: 'nanoseconds', total: 5e9, cores: 1.25, periodNs: 0 };
  check(
    ([type, value]: [string, number]) => amount(value, scale, type),
    [
      [['cpu', 5e9], '1.25 cores'],
      [['off_cpu', 5e9], '1.25 waiting threads'],
      [['off_cpu:nanoseconds', 1e9], '0.250 waiting threads'],
      [['off_cpu_preempted', 5e9], '1.25 waiting threads'],
      [['lock', 5], '<0.0001 waiting threads'],
      [['wall', 5e9], '1.25 threads'],
    ],
  );
  const counts = { ...scale, unit: 'count' };
  assert.equal(amount(23, counts, 'off_cpu:count'), '23');
  assert.equal(plain(amountCell(2.5e9, scale, 'lock')), '0.625');
  assert.equal(rateUnit('lock_contentions', 'count'), null);
});

test('reasons have colours of their own, whatever a sender writes', () => {
  const rows = [
    ['abort-marker', REASON_LABEL, 'io', 'reason-io'],
    ['abort-marker', REASON_LABEL, 'condvar', 'reason-sync'],
    ['abort-marker', REASON_LABEL, 'constructor', 'reason-other'],
    ['abort-marker', REASON_LABEL, '', 'reason-other'],
    ['abort-marker', '', 'io', 'marker'],
    ['native', REASON_LABEL, 'io', 'native'],
  ] as const;
  for (const [kind, module, name, group] of rows) assert.equal(groupOf(kind, module, name), group, name);
  assert.equal(reasonName('toString'), 'toString');
  const types = ['off_cpu', 'off_cpu:count', 'off_cpu_preempted', 'lock', 'off_cpux'];
  assert.deepEqual(types.map(hasReasons), [true, true, true, false, false]);
});

test('the locks page keeps the filter and asks for locks', () => {
  const state: ViewState = {
    ...DEFAULTS,
    page: 'explore',
    type: 'off_cpu',
    q: 'service="a"',
    root: '0123456789abcdef',
  };
  const locks = locksOf(state);
  assert.equal(encode(locks), '/locks?type=off_cpu&q=service%3D%22a%22');
  assert.equal(typeOf(locks), 'lock');
  assert.equal(typeOf(state), 'off_cpu');
  assert.deepEqual(decode('/locks', '?type=off_cpu&q=service%3D%22a%22'), locks);
});

test('shares never say zero or all when it is not', () => {
  check(
    ([part, whole]: [number, number]) => format.share(part, whole),
    [
      [[0, 10], '0 %'],
      [[1, 100_000], '<0.1 %'],
      [[1, 8], '12.5 %'],
      [[10, 10], '100 %'],
      [[99_999, 100_000], '>99.9 %'],
      [[1, 0], '–'],
    ],
  );
});

test('losses are a quiet share, and nothing where nothing was lost', () => {
  const part = { reason: 'a', total: 1, samples: 1 };
  const text = (losses: Losses) => plain(lossesText(losses, 1000) ?? 'nothing');
  assert.equal(text({ cut: [], lost: [], sent: 10 }), 'nothing');
  assert.equal(text({ cut: [part, { ...part, total: 3 }], lost: [], sent: 10 }), '0.4 % cut');
  assert.equal(text({ cut: [], lost: [part, part], sent: 98 }), '2.0 % lost');
  assert.equal(text({ cut: [{ ...part, total: 500 }], lost: [part], sent: 99_999 }), '50.0 % cut, <0.1 % lost');
});

test('counts, times and bytes', () => {
  check(format.count, [
    [61668, '61,668'],
    [0, '0'],
    [-1234, '−1,234'],
    [999, '999'],
  ]);
  check(format.countShort, [
    [1_170_000, '1.17 M'],
    [312, '312'],
    [61_668, '61.7 k'],
    [999_900, '1.00 M'],
    [2e9, '2.00 G'],
  ]);
  check(format.cpuTime, [
    [61_668e9, '61,668 CPU-s'],
    [400_000e9, '111 CPU-h'],
    [1.5e8, '150 CPU-ms'],
    [0, '0 CPU-s'],
  ]);
  check(format.duration, [
    [80, '80.0 ms'],
    [12_500, '12.5 s'],
    [3_600_000, '1 h'],
    [11_100_000, '3 h 5 min'],
    [90_000, '1 min 30 s'],
    [200_000_000, '2 d 7 h'],
    [0.25, '250 µs'],
    [3_599_800, '1 h'],
  ]);
  check(format.bytes, [
    [512, '512 B'],
    [1536, '1.50 KiB'],
    [10_737_418_240, '10.0 GiB'],
  ]);
});

test('characters that deceive are shown', () => {
  check(visible, [
    ['plain_name', 'plain_name'],
    ['a\u202eb', 'a\\u{202e}b'],
    ['\u0000\u001b[31m', '\\u{0}\\u{1b}[31m'],
    ['x\u200by\u2066z', 'x\\u{200b}y\\u{2066}z'],
    ['\ud800', '\\u{d800}'],
    ['tag\u{e0041}', 'tag\\u{e0041}'],
    ['größe 函数 😀', 'größe 函数 😀'],
    ['<img src=x onerror=alert(1)>', '<img src=x onerror=alert(1)>'],
  ]);
});

test('names are shortened by the rules of their language', () => {
  check(
    ([name, kind]: [string, string]) => shortName(name, kind),
    [
      [
        ['std::vector<index::Hit, std::allocator<index::Hit>>::_M_realloc_insert<index::Hit>', 'native'],
        'vector::_M_realloc_insert',
      ],
      [['index::Searcher::Search(index::Query const&, index::Collector&) const', 'native'], 'Searcher::Search'],
      [['void app::run<int>(int)', 'native'], 'app::run'],
      [['(anonymous namespace)::helper(int)', 'native'], '{anon}::helper'],
      [['<alloc::boxed::Box<F,A> as core::ops::function::FnOnce<Args>>::call_once', 'native'], 'Box::call_once'],
      [['<hyper::Connection as core::future::Future>::poll', 'rust'], 'Connection::poll'],
      [
        [
          '<rustc_middle::ty::context::TyCtxt>::par_hir_body_owners::<rustc_interface::passes::run::{closure#1}>::{closure#0}',
          'rust',
        ],
        'TyCtxt::par_hir_body_owners::{closure#0}',
      ],
      [['<std::sys::thread::unix::Thread>::new::thread_start', 'native'], 'new::thread_start'],
      [['<&mut T as core::fmt::Debug>::fmt', 'rust'], 'T::fmt'],
      [['<dyn Fn(A) -> B>::call', 'rust'], 'dyn Fn -> B::call'],
      [['<unbalanced::name', 'native'], '<unbalanced::name'],
      [['axum::routing::Router<S>::call::{{closure}}', 'native'], 'Router::call::{{closure}}'],
      [['operator new(unsigned long)', 'native'], 'operator new(unsigned long)'],
      [['std::operator<< <char>(std::ostream&)', 'native'], 'std::operator<< <char>(std::ostream&)'],
      [['main', 'native'], 'main'],
      [['foo<a->b>', 'native'], 'foo'],
      [['github.com/acme/shop/checkout.(*Cart).Price', 'go'], 'checkout.(*Cart).Price'],
      [['github.com/a/b.Map[github.com/c/d.K].Get', 'go'], 'b.Map[github.com/c/d.K].Get'],
      [['runtime.mallocgc', 'go'], 'runtime.mallocgc'],
      [['com.acme.OrderService.place(com.acme.Order)', 'jvm'], 'OrderService.place'],
      [['libc.so.6+0x1234', 'native'], 'libc.so.6+0x1234'],
      [['[unwind: no table]', 'abort-marker'], '[unwind: no table]'],
      [['__x64_sys_read', 'kernel'], '__x64_sys_read'],
    ],
  );
});

test('cutting keeps whole characters', () => {
  assert.equal(cut('abcdef', 6), 'abcdef');
  assert.equal(cut('abcdef', 4), 'abc…');
  assert.equal(cut('ab😀cd', 4), 'ab…');
  assert.equal(cut('abc', 1), '');
});

test('selectors come back as they went', () => {
  for (const text of [
    '',
    'service="x"',
    'service="x",pod=~"a.*","process.pid"="12"',
    'host!="a",host!~"b|c"',
    'service="quo\\"te\\\\"',
  ]) {
    const parsed = parseSelector(text);
    assert.ok(Array.isArray(parsed), text);
    assert.equal(formatSelector(parsed), text);
  }
  assert.deepEqual(parseSelector(' { service = "x" , } '), [{ name: 'service', op: '=', value: 'x' }]);
  for (const bad of ['service', 'service=x', '="x"', '{service="x"', 'a="b" c="d"', 'a=="b"'])
    assert.equal(typeof parseSelector(bad), 'string', bad);
  const one = parseSelector('service="x",host="a"');
  assert.ok(Array.isArray(one));
  assert.equal(formatSelector(withMatcher(one, { name: 'service', op: '=', value: 'y' })), 'host="a",service="y"');
});

test('a URL is the whole state', () => {
  const states: Partial<ViewState>[] = [
    {},
    { page: 'explore' },
    {
      page: 'explore',
      q: 'service="a b&c"',
      from: 'now-6h',
      sel: [1795820000000, 1795825400000],
      view: 'flame',
      root: '00ff00ff00ff00ff',
    },
    { page: 'explore', find: 'a+b', regex: true, by: '', sort: '-total', refresh: 0, nodes: 200_000, type: 'off_cpu' },
    { service: 'post', sort: 'hosts' },
  ];
  for (const patch of states) {
    const state = { ...DEFAULTS, ...patch };
    const url = new URL(encode(state), 'http://vesta');
    assert.deepEqual(decode(url.pathname, url.search), state);
  }
  assert.equal(encode(DEFAULTS), '/');
  const hostile = decode('/explore', '?view=evil&root=../../x&sel=9-1&refresh=-5&nodes=1e99&from=&type=');
  assert.deepEqual(hostile, { ...DEFAULTS, page: 'explore' });
});

test('going to another page leaves the graph behind and keeps the range', () => {
  const deep: ViewState = {
    ...DEFAULTS,
    page: 'explore',
    q: 'service="x"',
    from: 'now-6h',
    root: '00ff00ff00ff00ff',
    find: 'y',
    sel: [1, 2],
  };
  assert.deepEqual(servicesOf(deep), { ...DEFAULTS, from: 'now-6h' });
  assert.deepEqual(exploreOf(deep, 'host="h"'), { ...DEFAULTS, page: 'explore', from: 'now-6h', q: 'host="h"' });
});
