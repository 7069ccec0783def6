// Colours of the canvases. Those of the rest of the page are in style/.
//
// The fills of the kinds were searched for: the smallest distance of two of them (OKLab x 100) is 8.1 light and 7.9
// dark over normal sight, protanopia, deuteranopia and tritanopia (Machado 2009); contrast of text on them at least
// 6.6 light and 4.6 dark, of dark fills against the background at least 1.75. Light kernel and Go have 1.2 against
// white: there the gap between frames and the kernel's stripe do the work, never colour alone.
//
// Those of the reasons of a wait were searched for in the same way: distance at least 11.0 light and 10.0 dark (also from
// native and kernel, whose frames they stand below: 8.5 and 7.7), text contrast at least 5.5 and 4.5. A reason's name is
// always its frame's text.

/** Groups of frame kinds that get a colour of their own: more than eight cannot be told apart. */
export const GROUPS = [
  'native',
  'kernel',
  'go',
  'jvm',
  'python',
  'node',
  'managed',
  'unknown',
  'marker',
  'hidden',
  'root',
  'reason-lock',
  'reason-sync',
  'reason-sleep',
  'reason-io',
  'reason-poll',
  'reason-fault',
  'reason-preempted',
  'reason-other',
] as const;
export type Group = (typeof GROUPS)[number];

const GROUP_OF: Record<string, Group> = {
  native: 'native',
  rust: 'native',
  kernel: 'kernel',
  go: 'go',
  jvm: 'jvm',
  cpython: 'python',
  v8js: 'node',
  ruby: 'managed',
  php: 'managed',
  perl: 'managed',
  dotnet: 'managed',
  beam: 'managed',
  luajit: 'managed',
  'abort-marker': 'marker',
  hidden: 'hidden',
};

/** The label whose values say why a thread was off the CPU. */
export const REASON_LABEL = 'off_cpu.reason';

/** What waits for other threads shares a colour: eleven of them cannot be told apart, and the name stands beside it. */
const REASON_GROUPS: Record<string, Group> = {
  lock: 'reason-lock',
  condvar: 'reason-sync',
  semaphore: 'reason-sync',
  park: 'reason-sync',
  futex: 'reason-sync',
  sleep: 'reason-sleep',
  io: 'reason-io',
  poll: 'reason-poll',
  page_fault: 'reason-fault',
  preempted: 'reason-preempted',
};

/** Reasons in the words of people. */
const REASON_NAMES: Record<string, string> = {
  lock: 'lock',
  condvar: 'condition variable',
  semaphore: 'semaphore',
  park: 'parked thread',
  futex: 'futex, of what is not known',
  sleep: 'sleep',
  io: 'disk or pipe, socket, file',
  poll: 'poll, select, epoll',
  page_fault: 'page fault',
  preempted: 'preempted: ready, another thread ran',
  other: 'other',
};

export function reasonGroup(reason: string): Group {
  return Object.hasOwn(REASON_GROUPS, reason) ? (REASON_GROUPS[reason] as Group) : 'reason-other';
}

export function reasonName(reason: string): string {
  return Object.hasOwn(REASON_NAMES, reason) ? (REASON_NAMES[reason] as string) : reason;
}

/** True for the frame that says why its thread was off the CPU: no code, but a label's value. */
export function isReason(kind: string, module: string): boolean {
  return kind === 'abort-marker' && module === REASON_LABEL;
}

/** The group of a frame of the API. */
export function groupOf(kind: string, module = '', name = ''): Group {
  if (isReason(kind, module)) return reasonGroup(name);
  return GROUP_OF[kind] ?? 'unknown';
}

const KIND_NAMES: Record<string, string> = {
  cpython: 'Python',
  jvm: 'JVM',
  v8js: 'JavaScript',
  go: 'Go',
  rust: 'Rust',
  ruby: 'Ruby',
  php: 'PHP',
  perl: 'Perl',
  dotnet: '.NET',
  beam: 'BEAM',
  luajit: 'LuaJIT',
  'abort-marker': 'marker',
};

/** A kind as a word for people. */
export function kindName(kind: string): string {
  return KIND_NAMES[kind] ?? kind;
}

export interface CanvasTheme {
  readonly background: string;
  readonly text: string;
  readonly textMuted: string;
  readonly outline: string;
  readonly focus: string;
  readonly stripe: string;
  readonly hatch: string;
  readonly run: string;
  readonly match: string;
  readonly matchText: string;
  readonly faded: string;
  readonly fadedText: string;
  readonly markerEdge: string;
  readonly grid: string;
  readonly fills: Readonly<Record<Group, string>>;
  readonly series: readonly string[];
  readonly other: string;
}

export const LIGHT: CanvasTheme = {
  background: '#ffffff',
  text: '#16181d',
  textMuted: '#5b6270',
  outline: '#16181d',
  focus: '#0b5fff',
  stripe: '#c2571a',
  hatch: 'rgba(60,64,72,.28)',
  run: '#d5d8de',
  match: '#b4178f',
  matchText: '#ffffff',
  faded: '#eceef1',
  fadedText: '#7b8290',
  markerEdge: '#8a8f9a',
  grid: '#e6e8ec',
  fills: {
    native: '#7bbefe',
    kernel: '#ffdfb3',
    go: '#c8f0f3',
    jvm: '#95a489',
    python: '#c7953c',
    node: '#97c67d',
    managed: '#c5a7c4',
    unknown: '#cbcccd',
    marker: '#f4f4f6',
    hidden: '#e4e6ea',
    root: '#e9ebef',
    'reason-lock': '#ff551c',
    'reason-sync': '#b86cff',
    'reason-sleep': '#e4b638',
    'reason-io': '#67f9ff',
    'reason-poll': '#26a368',
    'reason-fault': '#e172bd',
    'reason-preempted': '#bef818',
    'reason-other': '#b5c3b0',
  },
  series: ['#5a8fd8', '#e5a14f', '#56ab9b', '#bd77b1', '#9aae55', '#dd7f73', '#8882d0', '#74c0dc'],
  other: '#b9bec7',
};

export const DARK: CanvasTheme = {
  background: '#15171b',
  text: '#eef0f4',
  textMuted: '#9aa2af',
  outline: '#ffffff',
  focus: '#7db1ff',
  stripe: '#ff9d66',
  hatch: 'rgba(220,224,232,.22)',
  run: '#33373e',
  match: '#e14bbd',
  matchText: '#16181d',
  faded: '#22252b',
  fadedText: '#7c8492',
  markerEdge: '#7f8693',
  grid: '#262a31',
  fills: {
    native: '#1e569e',
    kernel: '#834605',
    go: '#007895',
    jvm: '#334539',
    python: '#95640f',
    node: '#667260',
    managed: '#5e2e6b',
    unknown: '#56575a',
    marker: '#1f2227',
    hidden: '#2a2d33',
    root: '#2a2e36',
    'reason-lock': '#7a1200',
    'reason-sync': '#a109ff',
    'reason-sleep': '#a35c00',
    'reason-io': '#2671b2',
    'reason-poll': '#024247',
    'reason-fault': '#5c1580',
    'reason-preempted': '#5d00cb',
    'reason-other': '#6f585d',
  },
  series: ['#4a7dc4', '#c98538', '#459a8b', '#a866a0', '#86994a', '#c26a60', '#7770bd', '#5aa9c4'],
  other: '#5a606b',
};
