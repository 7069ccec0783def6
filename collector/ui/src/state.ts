// The page's state: what the URL says, the theme, and how to go from one state to the next.

import { batch, computed, effect, signal } from '@preact/signals';
import { type CanvasTheme, DARK, LIGHT } from './palette.ts';
import { formatSelector, type Matcher, parseSelector } from './selector.ts';
import { decode, encode, type ViewState } from './url.ts';

export const view = signal<ViewState>(decode(location.pathname, location.search));

/** `push` for steps that Back should undo (zoom, views, pages, filters), `replace` for typing. */
export function go(patch: Partial<ViewState>, how: 'push' | 'replace' = 'push'): void {
  const next = { ...view.peek(), ...patch };
  const url = encode(next);
  if (url !== encode(view.peek())) {
    if (how === 'push') history.pushState(null, '', url);
    else history.replaceState(null, '', url);
  }
  view.value = next;
}

addEventListener('popstate', () => {
  view.value = decode(location.pathname, location.search);
});

/** The matchers of the filter; none while it does not parse, `filterError` says why. */
const parsedFilter = computed(() => parseSelector(view.value.q));
export const matchers = computed<readonly Matcher[]>(() =>
  typeof parsedFilter.value === 'string' ? [] : parsedFilter.value,
);
export const filterError = computed(() => (typeof parsedFilter.value === 'string' ? parsedFilter.value : ''));

/** Sets the filter; the zoom stays when the same path exists in the new answer. */
export function setMatchers(next: readonly Matcher[], patch: Partial<ViewState> = {}): void {
  go({ ...patch, q: formatSelector(next) });
}

/** The selector as the API takes it: with braces, empty without matchers. */
export const filterParam = computed(() =>
  view.value.q.trim() === '' ? '' : view.value.q.trim().startsWith('{') ? view.value.q : `{${view.value.q}}`,
);

effect(() => {
  const { page } = view.value;
  const filter = matchers.value.map((m) => `${m.name}${m.op}${m.value}`).join(' ');
  const what = filter || 'Whole system';
  document.title =
    page === 'services' ? 'Services · Vesta' : page === 'locks' ? `Locks: ${what} · Vesta` : `${what} · Vesta`;
});

// Theme.
export type ThemeChoice = 'system' | 'light' | 'dark';
const THEME_KEY = 'vesta-theme';

function storedTheme(): ThemeChoice {
  try {
    const stored = localStorage.getItem(THEME_KEY);
    return stored === 'light' || stored === 'dark' ? stored : 'system';
  } catch {
    return 'system';
  }
}

export const themeChoice = signal<ThemeChoice>(storedTheme());
const darkQuery = matchMedia('(prefers-color-scheme: dark)');
const systemDark = signal(darkQuery.matches);
darkQuery.addEventListener('change', () => {
  systemDark.value = darkQuery.matches;
});

export const dark = computed(() => (themeChoice.value === 'system' ? systemDark.value : themeChoice.value === 'dark'));
export const canvasTheme = computed<CanvasTheme>(() => (dark.value ? DARK : LIGHT));

export function chooseTheme(choice: ThemeChoice): void {
  themeChoice.value = choice;
  try {
    if (choice === 'system') localStorage.removeItem(THEME_KEY);
    else localStorage.setItem(THEME_KEY, choice);
  } catch {
    // A browser that stores nothing still switches.
  }
}

effect(() => {
  const choice = themeChoice.value;
  if (choice === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
});

// Refresh.
/** Counts refreshes; resources that follow the clock ask again when it changes. */
export const tick = signal(0);

/** True where the range follows the clock. */
export const live = computed(() => view.value.to.startsWith('now'));

export function refreshNow(): void {
  tick.value += 1;
}

/** While this is in the future the picture must not change under the reader's pointer. */
let heldUntil = 0;
export function holdRefresh(ms: number): void {
  heldUntil = performance.now() + ms;
}

effect(() => {
  const seconds = view.value.refresh;
  if (seconds === 0 || !live.value || view.value.sel) return;
  const timer = setInterval(() => {
    if (!document.hidden && performance.now() >= heldUntil) refreshNow();
  }, seconds * 1000);
  return () => clearInterval(timer);
});

export const helpOpen = signal(false);

export { batch };
