// One URL is the whole state of the page: decode and encode it. Knows nothing of the page.

export type Page = 'services' | 'explore' | 'locks';
export type View = 'both' | 'flame' | 'table';
export const VIEWS: readonly View[] = ['both', 'flame', 'table'];

export interface ViewState {
  readonly page: Page;
  /** Profile type id. */
  readonly type: string;
  /** Selector without braces. */
  readonly q: string;
  readonly from: string;
  readonly to: string;
  /** Brushed part of the range, Unix milliseconds. */
  readonly sel: readonly [number, number] | null;
  readonly view: View;
  /** Path hash of the frame that fills the width; empty for all. */
  readonly root: string;
  readonly find: string;
  readonly regex: boolean;
  /** Label that splits the time line; empty for none, `auto` for the page's choice. */
  readonly by: string;
  /** Column and direction of the page's table: `self`, `-name`; empty for the default. */
  readonly sort: string;
  /** Filter of the services table. */
  readonly service: string;
  /** Seconds between refreshes, 0 for none. */
  readonly refresh: number;
  /** Nodes of the flame graph at most. */
  readonly nodes: number;
}

export const NODES_DEFAULT = 20_000;
export const NODES_DETAILED = 200_000;

export const DEFAULTS: ViewState = {
  page: 'services',
  type: 'cpu',
  q: '',
  from: 'now-1h',
  to: 'now',
  sel: null,
  view: 'both',
  root: '',
  find: '',
  regex: false,
  by: 'auto',
  sort: '',
  service: '',
  refresh: 10,
  nodes: NODES_DEFAULT,
};

const REFRESHES = [0, 5, 10, 30, 60, 300];

/** `state` on the services page: what belongs to one graph stays behind, the range and the type go along. */
export function servicesOf(state: ViewState): ViewState {
  return { ...exploreOf(state, ''), page: 'services' };
}

/** `state` on the explore page with another filter. */
export function exploreOf(state: ViewState, q: string): ViewState {
  return {
    ...state,
    page: 'explore',
    q,
    sel: null,
    root: '',
    find: '',
    regex: false,
    sort: '',
    service: '',
    nodes: NODES_DEFAULT,
  };
}

/** `state` on the locks page with the same filter. */
export function locksOf(state: ViewState): ViewState {
  return { ...exploreOf(state, state.page === 'services' ? '' : state.q), page: 'locks' };
}

/** The type that a page asks for: locks are of one type, whatever is chosen elsewhere. */
export function typeOf(state: ViewState): string {
  return state.page === 'locks' ? 'lock' : state.type;
}

/** The type whose graph frames end in why they waited. */
export function hasReasons(type: string): boolean {
  return /^off_cpu(_preempted)?(:|$)/.test(type);
}

function decodeSel(text: string | null): readonly [number, number] | null {
  const found = /^(\d{1,15})-(\d{1,15})$/.exec(text ?? '');
  if (!found) return null;
  const from = Number(found[1]);
  const to = Number(found[2]);
  return from < to ? [from, to] : null;
}

/** The state in a URL. What it does not say, or says wrongly, is the default. */
export function decode(pathname: string, search: string): ViewState {
  const params = new URLSearchParams(search);
  const text = (name: string, fallback: string) => params.get(name) ?? fallback;
  const view = params.get('view') as View | null;
  const root = text('root', '');
  const refresh = Number(text('refresh', String(DEFAULTS.refresh)));
  const nodes = Number(text('nodes', String(NODES_DEFAULT)));
  return {
    page: pathname === '/explore' ? 'explore' : pathname === '/locks' ? 'locks' : 'services',
    type: text('type', DEFAULTS.type) || DEFAULTS.type,
    q: text('q', ''),
    from: text('from', DEFAULTS.from) || DEFAULTS.from,
    to: text('to', DEFAULTS.to) || DEFAULTS.to,
    sel: decodeSel(params.get('sel')),
    view: view !== null && VIEWS.includes(view) ? view : 'both',
    root: /^[0-9a-f]{16}$/.test(root) ? root : '',
    find: text('find', ''),
    regex: params.get('re') === '1',
    by: text('by', DEFAULTS.by),
    sort: text('sort', ''),
    service: text('service', ''),
    refresh: REFRESHES.includes(refresh) ? refresh : DEFAULTS.refresh,
    nodes: Number.isInteger(nodes) && nodes > 0 && nodes <= NODES_DETAILED ? nodes : NODES_DEFAULT,
  };
}

const PATHS: Record<Page, string> = { services: '/', explore: '/explore', locks: '/locks' };

/** Path and query of a state; what is default is left out, so that links stay short. */
export function encode(state: ViewState): string {
  const params = new URLSearchParams();
  const put = (name: string, value: string, fallback: string) => {
    if (value !== fallback) params.set(name, value);
  };
  put('type', state.type, DEFAULTS.type);
  put('q', state.q, '');
  put('from', state.from, DEFAULTS.from);
  put('to', state.to, DEFAULTS.to);
  if (state.sel) params.set('sel', `${state.sel[0]}-${state.sel[1]}`);
  put('view', state.view, DEFAULTS.view);
  put('root', state.root, '');
  put('find', state.find, '');
  if (state.regex) params.set('re', '1');
  put('by', state.by, DEFAULTS.by);
  put('sort', state.sort, '');
  put('service', state.service, '');
  put('refresh', String(state.refresh), String(DEFAULTS.refresh));
  put('nodes', String(state.nodes), String(NODES_DEFAULT));
  const query = params.toString();
  return PATHS[state.page] + (query === '' ? '' : `?${query}`);
}
