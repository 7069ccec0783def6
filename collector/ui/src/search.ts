// Which functions match a search, and how much of the tree passes through a match. No DOM.

import type { FlameModel } from './flame/model.ts';

/** 1 for each name that holds `text`, whatever its case. */
export function matchText(names: readonly string[], text: string): Uint8Array {
  const wanted = text.toLowerCase();
  return Uint8Array.from(names, (name) => (name.toLowerCase().includes(wanted) ? 1 : 0));
}

/** 1 for each name that the expression finds; whatever its case unless it holds a capital. */
export function matchRegex(names: readonly string[], pattern: string): Uint8Array {
  const expression = new RegExp(pattern, /[A-Z]/.test(pattern.replace(/\\./g, '')) ? 'u' : 'iu');
  return Uint8Array.from(names, (name) => (expression.test(name) ? 1 : 0));
}

export interface Matches {
  /** By function. */
  readonly functions: Uint8Array;
  /** Frames that match, leftmost uppermost first; nested ones not counted. */
  readonly outermost: readonly number[];
  /** Sum over stacks below the searched root that hold a match. */
  readonly total: number;
}

/** The matches below `root`. A stack that holds two matches counts once. */
export function collectMatches(model: FlameModel, functions: Uint8Array, root: number): Matches {
  const outermost: number[] = [];
  let total = 0;
  const end = model.count === 0 ? 0 : (model.end[root] as number);
  for (let i = root; i < end;) {
    const f = model.func[i] as number;
    if (functions[f] === 1 && f !== model.hiddenFunc) {
      outermost.push(i);
      total += model.total_[i] as number;
      i = model.end[i] as number;
    } else {
      i += 1;
    }
  }
  return { functions, outermost, total };
}
