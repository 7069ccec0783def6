// Colours of the canvases. Those of the rest of the page are in style/.

/** Groups of frame kinds that get a colour of their own: more than eight cannot be told apart. */
export const GROUPS = ['native', 'kernel', 'go', 'jvm', 'python', 'node', 'managed', 'unknown', 'marker', 'hidden', 'root'] as const;
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

/** The group of a frame kind of the API. */
export function groupOf(kind: string): Group {
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
    native: '#8db8f5',
    kernel: '#ffdbba',
    go: '#a6f0f5',
    jvm: '#9dbb8c',
    python: '#e2a43f',
    node: '#93d88b',
    managed: '#c9a2c7',
    unknown: '#cfd1d5',
    marker: '#f4f4f6',
    hidden: '#e4e6ea',
    root: '#e9ebef',
  },
  series: ['#3f7fd6', '#e08a2e', '#3a9e8f', '#b455a0', '#7a9a2e', '#d4574e', '#6a63c9', '#4fb3d9'],
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
    native: '#2d5d94',
    kernel: '#8e4426',
    go: '#14707c',
    jvm: '#3d6b4a',
    python: '#7a5b10',
    node: '#4f7a1f',
    managed: '#6d4f7d',
    unknown: '#4b4e55',
    marker: '#1f2227',
    hidden: '#2a2d33',
    root: '#2a2e36',
  },
  series: ['#5b9bf0', '#f0a04b', '#4fbfae', '#d07abf', '#a3c14a', '#ec7a70', '#928bf0', '#6fcdf0'],
  other: '#5a606b',
};
