// A generated system for the stand-in collector: services, their stacks, and the API's answers about them.
// The same seed gives the same system; the shape of the answers is that of ../API.md.

import { locksOf, REASON, REASONS, shareOf, THREADS_PER_CORE, withReasons } from './waits.mjs';

const HOUR = 3_600_000;
const PERIOD_NS = 52_631_578;

/** A small generator of numbers (mulberry32): figures must not change between runs. */
export function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

const k = (name) => ({ name, kind: 'kernel', module: 'vmlinux', file: '', line: 0 });
const n = (name, module, file = '', line = 0, kind = 'native') => ({ name, kind, module, file, line });

const SYSCALL = [k('entry_SYSCALL_64_after_hwframe'), k('do_syscall_64')];
const KERNEL = [
  [
    '__x64_sys_read',
    'ksys_read',
    'vfs_read',
    'ext4_file_read_iter',
    'generic_file_read_iter',
    'filemap_read',
    'copy_page_to_iter',
    '_copy_to_iter',
  ],
  [
    '__x64_sys_write',
    'ksys_write',
    'vfs_write',
    'ext4_file_write_iter',
    'ext4_buffered_write_iter',
    'generic_perform_write',
    'ext4_da_write_begin',
    '__block_write_begin_int',
  ],
  [
    '__x64_sys_sendto',
    '__sys_sendto',
    'sock_sendmsg',
    'tcp_sendmsg',
    'tcp_sendmsg_locked',
    'tcp_write_xmit',
    '__tcp_transmit_skb',
    'ip_queue_xmit',
    '__dev_queue_xmit',
    'loopback_xmit',
    '__netif_rx',
  ],
  [
    '__x64_sys_recvfrom',
    '__sys_recvfrom',
    'sock_recvmsg',
    'tcp_recvmsg',
    'tcp_recvmsg_locked',
    'skb_copy_datagram_iter',
    'simple_copy_to_iter',
  ],
  [
    '__x64_sys_futex',
    'do_futex',
    'futex_wait',
    '__futex_wait',
    'futex_wait_queue',
    'schedule',
    '__schedule',
    'finish_task_switch.isra.0',
  ],
  [
    '__x64_sys_epoll_wait',
    'do_epoll_wait',
    'ep_poll',
    'schedule_hrtimeout_range',
    'schedule',
    '__schedule',
    'pick_next_task_fair',
  ],
  ['__x64_sys_mmap', 'ksys_mmap_pgoff', 'vm_mmap_pgoff', 'do_mmap', 'mmap_region', 'perf_event_mmap'],
].map((chain) => chain.map(k));
const FAULT = [
  k('asm_exc_page_fault'),
  k('exc_page_fault'),
  k('do_user_addr_fault'),
  k('handle_mm_fault'),
  k('__handle_mm_fault'),
  k('do_anonymous_page'),
  k('clear_page_erms'),
];

const LIBC_START = [
  n('_start', 'postgres'),
  n('__libc_start_main_impl', 'libc.so.6', 'csu/libc-start.c', 360),
  n('__libc_start_call_main', 'libc.so.6'),
];
const THREAD = [n('__clone3', 'libc.so.6'), n('start_thread', 'libc.so.6', 'nptl/pthread_create.c', 442)];

const pg = (name, file, line) => n(name, 'postgres', file, line);
const rs = (name, line = 0) => n(name, 'api-gateway', 'src/server.rs', line, 'native');
const go = (name, line = 0) => n(name, 'checkout', 'main.go', line, 'go');
const cc = (name) => n(name, 'search-index', 'index/segment.cc', 88);
const py = (name, line = 10) => n(name, '', 'feed/rank.py', line, 'cpython');
const java = (name) => n(name, '', 'OrderService.java', 41, 'jvm');
const js = (name) => n(name, '', 'render.js', 7, 'v8js');

/** Services: weight in cores, how their stacks begin, the functions that follow, module that leaves have. */
const SERVICES = [
  {
    service: 'postgres',
    cores: 3.1,
    containers: 3,
    named: 0.997,
    executable: 'postgres',
    spine: [
      ...LIBC_START,
      pg('main', 'main/main.c', 200),
      pg('PostmasterMain', 'postmaster/postmaster.c', 1400),
      pg('ServerLoop', 'postmaster/postmaster.c', 1700),
      pg('BackendStartup', 'postmaster/postmaster.c', 4200),
      pg('PostgresMain', 'tcop/postgres.c', 4600),
    ],
    pool: [
      'exec_simple_query',
      'PortalRun',
      'PortalRunSelect',
      'standard_ExecutorRun',
      'ExecutePlan',
      'ExecProcNodeFirst',
      'ExecHashJoin',
      'ExecHashJoinImpl',
      'ExecScan',
      'SeqNext',
      'heap_getnextslot',
      'heapgettup_pagemode',
      'heap_prepare_pagescan',
      'heapam_index_fetch_tuple',
      'ExecAgg',
      'agg_retrieve_direct',
      'ExecSort',
      'tuplesort_performsort',
      'qsort_tuple',
      'comparetup_heap',
      'btgettuple',
      '_bt_first',
      '_bt_search',
      '_bt_compare',
      'hash_search_with_hash_value',
      'LWLockAcquire',
      'ReadBufferExtended',
      'StartReadBuffer',
      'PinBuffer',
      'AllocSetAlloc',
      'AllocSetReset',
      'pg_strtoint32_safe',
      'ExecInterpExpr',
      'slot_deform_heap_tuple',
      'numeric_add',
      'palloc0',
    ].map((name, i) => pg(name, `executor/part${i % 7}.c`, 100 + i * 13)),
  },
  {
    service: 'search-index',
    cores: 2.4,
    containers: 4,
    named: 0.982,
    executable: 'search-index',
    spine: [
      ...THREAD,
      cc(
        'std::thread::_State_impl<std::thread::_Invoker<std::tuple<void (index::Pool::*)(), index::Pool*>>>::_M_run()',
      ),
      cc('index::Pool::Work()'),
    ],
    pool: [
      'index::Searcher::Search(index::Query const&, index::Collector&) const',
      'index::BooleanScorer::Score(index::Collector*, int, int)',
      'index::PostingsReader<index::BlockCodec<128u>>::Advance(unsigned int)',
      'index::BlockCodec<128u>::Decode(unsigned char const*, unsigned int*)',
      'simd::UnpackBits_avx2(unsigned char const*, unsigned int*, int)',
      'index::TopK<index::Hit, std::greater<float>>::Push(index::Hit&&)',
      'std::__introsort_loop<index::Hit*, long, __gnu_cxx::__ops::_Iter_comp_iter<std::greater<float>>>(index::Hit*, index::Hit*, long)',
      'std::vector<index::Hit, std::allocator<index::Hit>>::_M_realloc_insert<index::Hit>',
      'index::Similarity::Score(float, float) const',
      'absl::container_internal::raw_hash_set<absl::FlatHashMapPolicy<std::string, int>>::find_or_prepare_insert',
      'operator new(unsigned long)',
      'je_malloc',
      'arena_malloc_hard',
      'index::TermDictionary::Seek(std::string_view) const',
      'fst::Matcher::Next()',
      'index::DocValues::Get(unsigned int) const',
      'memcpy@plt',
      '__memmove_avx_unaligned_erms',
    ].map(cc),
  },
  {
    service: 'checkout',
    cores: 1.9,
    containers: 6,
    named: 0.999,
    executable: 'checkout',
    spine: [
      go('runtime.goexit.abi0'),
      go('net/http.(*conn).serve', 2092),
      go('net/http.serverHandler.ServeHTTP', 3210),
      go('github.com/acme/shop/internal/middleware.(*Chain).ServeHTTP', 44),
    ],
    pool: [
      'github.com/acme/shop/checkout.(*Handler).Create',
      'github.com/acme/shop/checkout.(*Cart).Price',
      'github.com/acme/shop/internal/tax.Table[...].Lookup',
      'encoding/json.(*decodeState).object',
      'encoding/json.(*decodeState).value',
      'encoding/json.Unmarshal',
      'encoding/json.checkValid',
      'reflect.Value.Set',
      'runtime.mallocgc',
      'runtime.growslice',
      'runtime.gcAssistAlloc',
      'runtime.scanobject',
      'runtime.mapaccess2_faststr',
      'database/sql.(*DB).QueryContext',
      'github.com/lib/pq.(*conn).simpleQuery',
      'crypto/tls.(*Conn).Write',
      'crypto/aes/gcm.gcmAesEnc',
      'bufio.(*Writer).Flush',
      'strconv.ParseFloat',
      'sort.pdqsort_func',
      'time.Now',
      'go.opentelemetry.io/otel/sdk/trace.(*tracer).Start',
    ].map((name, i) => go(name, 20 + i * 17)),
  },
  {
    service: 'api-gateway',
    cores: 1.3,
    containers: 2,
    named: 0.994,
    executable: 'api-gateway',
    spine: [
      ...THREAD,
      rs('std::sys::thread::unix::Thread::new::thread_start', 118),
      rs('<alloc::boxed::Box<F,A> as core::ops::function::FnOnce<Args>>::call_once', 1972),
      rs('tokio::runtime::scheduler::multi_thread::worker::run', 500),
      rs('tokio::runtime::scheduler::multi_thread::worker::Context::run_task', 585),
    ],
    pool: [
      'tokio::runtime::task::harness::Harness<T,S>::poll',
      '<hyper_util::server::conn::auto::Connection<I,S,E> as core::future::future::Future>::poll',
      'hyper::proto::h1::dispatch::Dispatcher<D,Bs,I,T>::poll_catch',
      'hyper::proto::h1::role::<impl hyper::proto::h1::Http1Transaction for Server>::parse',
      'httparse::Request::parse_with_config_and_uninit_headers',
      'axum::routing::Router<S>::call_with_state::{{closure}}',
      'api_gateway::auth::verify',
      'ring::ec::suite_b::ecdsa::verification::verify_digest',
      'p256_point_mul',
      'rustls::conn::ConnectionCommon<Data>::process_new_packets',
      'aes_gcm_dec_update_vaes_avx2',
      'serde_json::de::from_slice',
      '<serde_json::read::SliceRead as serde_json::read::Read>::parse_str',
      'hashbrown::map::HashMap<K,V,S,A>::get_mut',
      '<core::hash::sip::Hasher<S> as core::hash::Hasher>::write',
      'alloc::raw_vec::RawVecInner<A>::finish_grow',
      '__rdl_realloc',
      'mio::poll::Poll::poll',
      '__memmove_avx_unaligned_erms',
    ].map((name, i) => rs(name, 30 + i * 11)),
  },
  {
    service: 'feed-ranker',
    cores: 0.82,
    containers: 2,
    named: 0.961,
    executable: 'python3.11',
    spine: [
      n('_start', 'python3.11'),
      n('Py_BytesMain', 'python3.11'),
      n('_PyEval_EvalFrameDefault', 'python3.11'),
      py('<module>', 1),
      py('serve', 210),
    ],
    pool: [
      py('rank', 88),
      py('score_batch', 120),
      py('features', 61),
      py('<listcomp>', 64),
      py('tokenize', 31),
      py('Embedding.lookup', 18),
      n('PyObject_Vectorcall', 'python3.11'),
      n('_PyEval_EvalFrameDefault', 'python3.11'),
      n('PyDict_GetItemWithError', 'python3.11'),
      n('PyArray_MatrixProduct2', '_multiarray_umath.cpython-311.so'),
      n('dgemm_kernel_HASWELL', 'libopenblas.so.0'),
      n('gc_collect_main', 'python3.11'),
      n('libopenblas.so.0+0x3f2a10', 'libopenblas.so.0', '', 0, 'unknown'),
      n('\u202egpj.elif<img src=x onerror=alert(1)>', 'evil\u0007.so'),
    ],
  },
  {
    service: 'orders',
    cores: 0.61,
    containers: 2,
    named: 0.7,
    executable: 'java',
    spine: [
      ...THREAD,
      n('thread_native_entry', 'libjvm.so'),
      n('JavaThread::thread_main_inner()', 'libjvm.so'),
      java('java.lang.Thread.run'),
      java('java.util.concurrent.ThreadPoolExecutor$Worker.run'),
    ],
    pool: [
      java('com.acme.orders.OrderService.place(com.acme.orders.Order)'),
      java('com.acme.orders.Ledger.append'),
      java('org.hibernate.internal.SessionImpl.flush'),
      java('com.fasterxml.jackson.databind.ObjectMapper.readValue'),
      java('java.util.HashMap.getNode'),
      java('java.lang.String.hashCode'),
      n('G1ParScanThreadState::trim_queue_to_threshold(unsigned int)', 'libjvm.so'),
      n('[anon]+0x7f21', '', '', 0, 'unknown'),
      n('libjvm.so+0x9d2210', 'libjvm.so', '', 0, 'unknown'),
    ],
  },
  {
    service: 'web-render',
    cores: 0.34,
    containers: 1,
    named: 0.93,
    executable: 'node',
    spine: [
      n('_start', 'node'),
      n('node::Start(int, char**)', 'node'),
      n('uv_run', 'node'),
      js('processTicksAndRejections'),
    ],
    pool: [
      js('renderToString'),
      js('reconcileChildren'),
      js('Object.assign'),
      js('JSON.stringify'),
      n('v8::internal::Scavenger::Process(v8::JobDelegate*)', 'node'),
      n('Builtins_InterpreterEntryTrampoline', 'node'),
      js('hydrate'),
    ],
  },
  {
    service: 'kernel',
    cores: 0.21,
    containers: 0,
    named: 1,
    executable: '',
    spine: [k('ret_from_fork_asm'), k('ret_from_fork'), k('kthread')],
    pool: [
      'worker_thread',
      'process_one_work',
      'wb_workfn',
      'wb_writeback',
      '__writeback_inodes_wb',
      'ext4_do_writepages',
      'blk_mq_submit_bio',
      'kcompactd',
      'compact_zone',
      'rcu_gp_kthread',
      'smpboot_thread_fn',
      'run_ksoftirqd',
      'handle_softirqs',
      'net_rx_action',
      'napi_poll',
      'virtnet_poll',
    ].map(k),
  },
  ...['node-exporter', 'containerd', 'kubelet', 'systemd-journald', 'redis', 'envoy', 'fluent-bit', 'sshd', 'cron'].map(
    (service, i) => ({
      service,
      cores: 0.11 / (i + 1),
      containers: i % 2,
      named: 0.99 - i * 0.01,
      executable: service,
      spine: [n('_start', service), n('main', service)],
      pool: ['loop', 'dispatch', 'parse', 'flush', 'encode'].map((name) =>
        n(`${service.replaceAll('-', '_')}_${name}`, service),
      ),
    }),
  ),
];

class Tree {
  constructor() {
    this.root = { fn: { name: 'total', kind: 'unknown', module: '', file: '', line: 0 }, children: new Map(), self: 0 };
    this.nodes = 1;
  }

  add(stack, value) {
    let at = this.root;
    for (const fn of stack) {
      let next = at.children.get(fn);
      if (!next) {
        next = { fn, children: new Map(), self: 0 };
        at.children.set(fn, next);
        this.nodes += 1;
      }
      at = next;
    }
    at.self += value;
  }
}

/** Grows the frames below a stack as real programs do: long single chains, few heavy branches, many light ones. */
function grow(tree, service, rand, stack, pool, value, least, depth) {
  const leaf = () => tree.add(stack, value);
  if (value < least || depth > 64) return leaf();
  const end = rand();
  if (depth > 2 && end < 0.07) {
    const chain = [...SYSCALL, ...KERNEL[Math.floor(rand() * KERNEL.length)]];
    const cut = 3 + Math.floor(rand() * (chain.length - 3));
    tree.add([...stack, ...chain.slice(0, cut)], value * 0.7);
    return tree.add([...stack, ...chain.slice(0, Math.max(3, cut - 2))], value * 0.3);
  }
  if (depth > 2 && end < 0.085) return tree.add([...stack, ...FAULT.slice(0, 3 + Math.floor(rand() * 5))], value);
  if (depth > 4 && end < 0.14) return leaf();
  const kinds = rand();
  const branches = kinds < 0.5 ? 1 : kinds < 0.76 ? 2 : kinds < 0.92 ? 3 : 5 + Math.floor(rand() * 4);
  const self = rand() < 0.35 ? rand() ** 2 * 0.4 : 0;
  if (self > 0) tree.add(stack, value * self);
  const weights = Array.from({ length: branches }, (_, i) => (0.35 + rand()) / (1 + i) ** 1.6);
  const whole = weights.reduce((a, b) => a + b, 0);
  weights.forEach((weight, i) => {
    const fn = service.pool[(pool + 1 + i * 3 + Math.floor(rand() ** 6 * 5)) % service.pool.length];
    grow(
      tree,
      service,
      rand,
      [...stack, fn],
      pool + 1 + i * 2,
      (value * (1 - self) * weight) / whole,
      least,
      depth + 1,
    );
  });
}

/** Preorder columns of a tree, children by value; what is below `least` is hidden. */
function columns(tree, scale, maxNodes) {
  const total = new Map();
  const sum = (node) => {
    let value = node.self;
    for (const child of node.children.values()) value += sum(child);
    total.set(node, value);
    return value;
  };
  sum(tree.root);
  const values = [...total.values()].sort((a, b) => b - a);
  const least = values.length > maxNodes ? values[maxNodes] : 0;
  const strings = [''];
  const stringIndex = new Map([['', 0]]);
  const text = (value) => {
    if (!stringIndex.has(value)) {
      stringIndex.set(value, strings.length);
      strings.push(value);
    }
    return stringIndex.get(value);
  };
  const functions = { name: [], file: [], line: [], kind: [], module: [], named: [] };
  const functionIndex = new Map();
  const func = (fn) => {
    if (!functionIndex.has(fn)) {
      functionIndex.set(fn, functions.name.length);
      functions.name.push(text(fn.name));
      functions.file.push(text(fn.file));
      functions.line.push(fn.line);
      functions.kind.push(fn.kind);
      functions.module.push(text(fn.module));
      functions.named.push(/\+0x/.test(fn.name) ? 0 : 1);
    }
    return functionIndex.get(fn);
  };
  const nodes = { func: [], total: [], self: [], depth: [], hidden: [], flags: [] };
  const hidden = { nodes: 0, total: 0 };
  const countOf = (node) => [...node.children.values()].reduce((all, child) => all + countOf(child), 1);
  const emit = (node, depth) => {
    const at = nodes.func.length;
    nodes.func.push(func(node.fn));
    nodes.total.push(Math.round(total.get(node) * scale));
    nodes.self.push(Math.round(node.self * scale));
    nodes.depth.push(depth);
    nodes.hidden.push(0);
    nodes.flags.push(node.fn.name.includes('Similarity::Score') || node.fn.name.includes('palloc0') ? 2 : 0);
    for (const child of [...node.children.values()].sort((a, b) => total.get(b) - total.get(a))) {
      if (total.get(child) < least) {
        nodes.hidden[at] += Math.round(total.get(child) * scale);
        nodes.flags[at] |= 1;
        hidden.nodes += countOf(child);
        hidden.total += Math.round(total.get(child) * scale);
      } else emit(child, depth + 1);
    }
  };
  emit(tree.root, 0);
  return { strings, functions, nodes, hidden };
}

function topOf(tree, scale) {
  const rows = new Map();
  const walk = (node, open) => {
    let total = node.self;
    const first = !open.has(node.fn);
    if (first) open.add(node.fn);
    for (const child of node.children.values()) total += walk(child, open);
    if (first) open.delete(node.fn);
    if (node !== tree.root) {
      const row = rows.get(node.fn) ?? { self: 0, total: 0 };
      row.self += node.self;
      if (first) row.total += total;
      rows.set(node.fn, row);
    }
    return total;
  };
  const whole = walk(tree.root, new Set());
  const list = [...rows].map(([fn, row]) => ({
    ...fn,
    named: !/\+0x/.test(fn.name),
    self: Math.round(row.self * scale),
    total: Math.round(row.total * scale),
  }));
  return { whole: Math.round(whole * scale), rows: list.sort((a, b) => b.self - a.self) };
}

const UNITS = { s: 1000, m: 60_000, h: HOUR, d: 24 * HOUR, w: 168 * HOUR };
function resolve(textOrNull, now, fallback) {
  const text = textOrNull ?? fallback;
  const found = /^now(?:-(\d+)([smhdw]))?$/.exec(text);
  if (found) return now - (found[1] ? Number(found[1]) * UNITS[found[2]] : 0);
  return Number(text);
}

/** Cores of a service at a time: a wave, a noise that depends on the time alone, and an evening for checkout. */
function coresAt(service, ms) {
  const minute = ms / 60_000;
  const noise = random(Math.floor(ms / 5000) * 31 + service.service.length)();
  const wave =
    1 + 0.22 * Math.sin(minute / 9 + service.cores * 5) + 0.1 * Math.sin(minute / 2.3) + 0.14 * (noise - 0.5);
  const bump = service.service === 'checkout' && minute % 45 > 31 && minute % 45 < 36 ? 1.8 : 1;
  return service.cores * wave * bump;
}

/** The stand-in's answers: a function of path and parameters to {status, body}. */
export function generate({ nodes, firstDataAt }) {
  const trees = new Map();
  for (const service of SERVICES) trees.set(service, new Tree());
  const weight = SERVICES.reduce((sum, service) => sum + service.cores, 0);
  // Frames are about in proportion to the weight over the least value: found by halving it.
  for (let least = weight / 400, size = 0; size < nodes; least /= 1.5) {
    size = 0;
    for (const service of SERVICES) {
      const tree = new Tree();
      const rand = random(service.service.length * 97 + 5);
      grow(tree, service, rand, service.spine, 0, service.cores, least, 0);
      if (service.cores > 1)
        tree.add(
          [n('[unwind: no table]', '', '', 0, 'abort-marker'), service.pool[3], service.pool[5]],
          service.cores * 0.004,
        );
      trees.set(service, tree);
      size += tree.nodes;
    }
  }
  const merged = (chosen) => {
    const tree = new Tree();
    const walk = (node, stack) => {
      if (node.self > 0) tree.add(stack, node.self);
      for (const child of node.children.values()) walk(child, [...stack, child.fn]);
    };
    for (const service of chosen) walk(trees.get(service).root, []);
    return tree;
  };
  const cache = new Map();
  const once = (key, make) => {
    if (!cache.has(key)) cache.set(key, make());
    return cache.get(key);
  };

  const selected = (params) => {
    const filter = params.get('filter') ?? '';
    const service = /service="([^"]*)"/.exec(filter)?.[1];
    const executable = /executable="([^"]*)"/.exec(filter)?.[1];
    return SERVICES.filter(
      (one) =>
        (service === undefined || one.service === service) &&
        (executable === undefined || one.executable === executable),
    );
  };

  const error = (status, code, message, hint) => ({
    status,
    body: { error: { code, message, hint, request_id: 'mock-1' } },
  });

  return (path, params) => {
    const now = Date.now();
    const prefix = '/api/v1/projects/default';
    if (!path.startsWith(prefix))
      return error(404, 'not_found', `There is no ${path}.`, 'The API is below /api/v1/projects/{project}.');
    const fed = now >= firstDataAt;
    const from = resolve(params.get('from'), now, 'now-1h');
    const to = resolve(params.get('to'), now, 'now');
    if (!(from < to))
      return error(400, 'bad_range', 'The range ends before it begins.', 'Let from be earlier than to.');
    const seconds = (to - from) / 1000;
    const chosen = fed ? selected(params) : [];
    const key = chosen.map((one) => one.service).join();
    const coverage = {
      hosts: fed ? 1 : 0,
      host_ms: fed ? Math.round((to - from) * 0.998) : 0,
      window_ms: to - from,
      cores: chosen.reduce((sum, one) => sum + one.cores, 0),
    };
    const type = params.get('type') ?? 'cpu';
    const waiting = type === 'off_cpu' || type === 'lock';
    if (waiting) coverage.cores *= THREADS_PER_CORE;
    const reason = /"off_cpu\.reason"="([^"]*)"/.exec(params.get('filter') ?? '')?.[1];
    const reasons = REASONS.filter((one) => reason === undefined || one === reason);
    const samplesOf = (cores) => Math.round((cores * seconds * 1e9) / PERIOD_NS);
    const route = path.slice(prefix.length);
    if (route === '/meta') {
      return {
        status: 200,
        body: {
          version: '0.1.0-mock',
          features: [],
          now,
          data: { disk_bytes: fed ? 214_748_364 : 0, disk_bytes_max: 10_737_418_240 },
          profile_types: fed
            ? [
                { id: 'cpu', unit: 'nanoseconds', label: 'CPU', period_ns: PERIOD_NS },
                { id: 'lock', unit: 'nanoseconds', label: 'Lock wait', period_ns: 0 },
                { id: 'off_cpu', unit: 'nanoseconds', label: 'Off-CPU time', period_ns: 0 },
              ]
            : [],
          auth: { required: false },
        },
      };
    }
    if (route === '/locks') {
      const limit = Number(params.get('limit') ?? 50);
      const none = { locks: 0, total: { wait_ns: 0, contentions: 0, holder_samples: 0 }, rows: [], warnings: [] };
      const answer = fed ? locksOf(chosen, seconds, limit) : { ...none, others: { locks: 0, ...none.total } };
      const cores = answer.total.wait_ns / seconds / 1e9;
      return { status: 200, body: { from, to, coverage: { ...coverage, cores }, ...answer } };
    }
    if (route === '/services') {
      const rows = chosen
        .map((one) => ({
          service: one.service,
          cores: one.cores,
          share: one.cores / coverage.cores,
          samples: samplesOf(one.cores),
          hosts: 1,
          containers: one.containers,
          named_share: one.named,
          trend: Array.from({ length: 48 }, (_, i) => coresAt(one, from + ((to - from) * i) / 48)),
        }))
        .sort((a, b) => b.cores - a.cores);
      return {
        status: 200,
        body: { from, to, type: 'cpu', unit: 'nanoseconds', total_cores: coverage.cores, coverage, rows, warnings: [] },
      };
    }
    if (route === '/labels')
      return {
        status: 200,
        body: {
          labels: fed
            ? [
                { name: 'service', values: SERVICES.length },
                { name: 'host', values: 1 },
                { name: 'executable', values: SERVICES.length },
                { name: 'process.pid', values: 214 },
                { name: 'thread.name', values: 91 },
              ]
            : [],
        },
      };
    const label = /^\/labels\/([^/]+)\/values$/.exec(route);
    if (label) {
      const name = decodeURIComponent(label[1]);
      const values = new Map();
      for (const one of chosen) {
        const value =
          name === 'service'
            ? one.service
            : name === 'executable'
              ? one.executable
              : name === 'host'
                ? 'vesta-dev'
                : `${name}-${one.service}`;
        values.set(value, (values.get(value) ?? 0) + samplesOf(one.cores));
      }
      const rows = [...values]
        .map(([value, samples]) => ({ value, samples }))
        .filter((row) => row.value.startsWith(params.get('prefix') ?? ''));
      return {
        status: 200,
        body: { values: rows.sort((a, b) => b.samples - a.samples).slice(0, Number(params.get('limit') ?? 100)) },
      };
    }
    if (route === '/series') {
      const step = Math.max(5000, Math.ceil((to - from) / 240 / 5000) * 5000);
      const t0 = Math.floor(from / step) * step;
      const buckets = fed ? Math.ceil((to - t0) / step) : 0;
      const by = params.get('by') ?? '';
      const limit = Number(params.get('limit') ?? 8);
      const valuesOf = (one) => Array.from({ length: buckets }, (_, i) => coresAt(one, t0 + i * step));
      const add = (all) => all.reduce((sum, values) => values.map((value, i) => value + (sum[i] ?? 0)), []);
      const groups = new Map();
      for (const one of by === REASON ? chosen.slice(0, 1) : []) {
        for (const why of reasons)
          groups.set(why, [valuesOf(one).map((value) => value * shareOf(why) * THREADS_PER_CORE * 3)]);
      }
      for (const one of by === REASON ? [] : chosen) {
        const value =
          by === 'service' ? one.service : by === 'executable' ? one.executable : by === 'host' ? 'vesta-dev' : '';
        groups.set(value, [...(groups.get(value) ?? []), valuesOf(one)]);
      }
      const series = [...groups].map(([value, all]) => ({ labels: by ? { [by]: value } : {}, values: add(all) }));
      const rest = series.slice(limit).map((one) => one.values);
      return {
        status: 200,
        body: {
          t0,
          step,
          type,
          unit: 'nanoseconds',
          value_unit: waiting ? 'threads' : 'cores',
          series: series.slice(0, limit),
          other: rest.length > 0 ? add(rest) : null,
          annotations: [],
          warnings: [],
        },
      };
    }
    if (route === '/flamegraph') {
      const max = Number(params.get('max_nodes') ?? 20_000);
      // The range changes the values, not the shape: seconds are rounded so that a repeated question costs nothing.
      const rounded = Math.round(seconds);
      const leaf = params.get('leaf') === REASON;
      const answer = once(`columns ${key} ${rounded} ${max} ${type} ${leaf} ${reason}`, () => {
        const tree = once(`tree ${key}`, () => merged(chosen));
        const scale = rounded * 1e9 * (waiting ? THREADS_PER_CORE : 1);
        return columns(leaf ? { root: withReasons(tree.root, reasons) } : tree, scale, max);
      });
      return {
        status: 200,
        body: {
          type,
          unit: 'nanoseconds',
          total: answer.nodes.total[0],
          samples: samplesOf(coverage.cores),
          period_ns: waiting ? 0 : PERIOD_NS,
          coverage,
          losses: {
            cut: [
              { reason: 'no unwind info', total: answer.nodes.total[0] * 0.004 },
              { reason: 'truncated', total: answer.nodes.total[0] * 0.0003 },
            ],
            lost: [{ reason: 'ring buffer full', samples: 3 }],
            sent: samplesOf(coverage.cores),
          },
          ...answer,
          warnings: [],
        },
      };
    }
    if (route === '/functions') {
      const tree = once(`tree ${key}`, () => merged(chosen));
      const { whole, rows } = topOf(tree, seconds * 1e9);
      return {
        status: 200,
        body: {
          unit: 'nanoseconds',
          total: whole,
          samples: samplesOf(coverage.cores),
          coverage,
          rows: rows.slice(0, Number(params.get('limit') ?? 500)),
          warnings: [],
        },
      };
    }
    return error(404, 'not_found', `There is no ${route}.`, 'See API.md.');
  };
}
