// Keys that work everywhere on the page.

import { copyName, goToMatch, stepBack, zoomTo } from './flame/navigate.ts';
import { chooseTheme, dark, go, helpOpen, refreshNow, view } from './state.ts';
import { shiftRange } from './time.ts';
import { exploreOf, locksOf, servicesOf, VIEWS } from './url.ts';

/** What `?` shows. */
export const KEYS: readonly (readonly [string, string])[] = [
  ['/', 'search'],
  ['n  N', 'next, previous match'],
  ['Esc', 'one step back: search, zoom, brushed time'],
  ['0', 'show all frames'],
  ['↑ ↓ ← →', 'caller, heaviest callee, siblings'],
  ['Enter', 'zoom to the chosen frame'],
  ['v', 'table and flame graph, flame graph, table'],
  ['[  ]', 'earlier, later'],
  ['y', 'copy the name of the frame'],
  ['r', 'refresh now'],
  ['t', 'light or dark'],
  ['g s,  g e,  g l', 'go to Services, Explore, Locks'],
  ['?', 'this list'],
];

/** How long `g` waits for its second key. */
const CHORD_MS = 1500;
let chordUntil = 0;

function isTyping(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLInputElement || target instanceof HTMLSelectElement || target instanceof HTMLTextAreaElement
  );
}

function chord(key: string): boolean {
  if (performance.now() > chordUntil) return false;
  chordUntil = 0;
  if (key === 's') go(servicesOf(view.peek()));
  else if (key === 'e') go(exploreOf(view.peek(), ''));
  else if (key === 'l') go(locksOf(view.peek()));
  else return false;
  return true;
}

function everywhere(key: string): boolean {
  switch (key) {
    case '?':
      helpOpen.value = !helpOpen.peek();
      return true;
    case 't':
      chooseTheme(dark.peek() ? 'light' : 'dark');
      return true;
    case 'r':
      refreshNow();
      return true;
    case '[':
      shiftRange(-1);
      return true;
    case ']':
      shiftRange(1);
      return true;
    case 'g':
      chordUntil = performance.now() + CHORD_MS;
      return true;
    case '/': {
      const field = document.querySelector<HTMLInputElement>('[data-search]');
      field?.focus();
      field?.select();
      return field !== null;
    }
    default:
      return false;
  }
}

function onExplore(key: string): boolean {
  switch (key) {
    case 'Escape':
      return stepBack();
    case '0':
      zoomTo(0);
      return true;
    case 'n':
      goToMatch(1);
      return true;
    case 'N':
      goToMatch(-1);
      return true;
    case 'y':
      copyName();
      return true;
    case 'v': {
      const now = VIEWS.indexOf(view.peek().view);
      go({ view: VIEWS[(now + 1) % VIEWS.length] ?? 'both' });
      return true;
    }
    default:
      return false;
  }
}

export function handleKey(event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || isTyping(event.target)) return;
  if (helpOpen.peek() && event.key === 'Escape') {
    helpOpen.value = false;
    return;
  }
  if (chord(event.key) || everywhere(event.key) || (view.peek().page === 'explore' && onExplore(event.key)))
    event.preventDefault();
}
