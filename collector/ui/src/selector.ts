// The text of a filter, `{service="x",pod=~"a.*","process.pid"="12"}`, and its matchers. Knows nothing of the page.

export type MatchOp = '=' | '!=' | '=~' | '!~';

export interface Matcher {
  readonly name: string;
  readonly op: MatchOp;
  readonly value: string;
}

const STRING = /^"((?:[^"\\]|\\.)*)"/s;
const NAME = /^[A-Za-z_][A-Za-z0-9_]*/;
const OP = /^(=~|!~|!=|=)/;
const ESCAPES: Record<string, string> = { n: '\n', t: '\t', r: '\r' };

const unescape = (text: string) => text.replace(/\\(.)/gs, (_, c: string) => ESCAPES[c] ?? c);
const escape = (text: string) =>
  text.replace(/["\\]/g, '\\$&').replace(/\n/g, '\\n').replace(/\t/g, '\\t').replace(/\r/g, '\\r');

/** The matchers of a selector, or a sentence that says what is wrong with it. */
export function parseSelector(text: string): Matcher[] | string {
  let rest = text.trim();
  if (rest.startsWith('{')) {
    if (!rest.endsWith('}')) return 'the selector lacks its closing brace';
    rest = rest.slice(1, -1).trim();
  }
  const matchers: Matcher[] = [];
  const take = (pattern: RegExp): string | undefined => {
    const found = pattern.exec(rest);
    if (!found) return undefined;
    rest = rest.slice(found[0].length).trimStart();
    return found[1] ?? found[0];
  };
  while (rest !== '') {
    const quoted = take(STRING);
    const name = quoted === undefined ? take(NAME) : unescape(quoted);
    if (name === undefined) return `a label name is expected at “${rest}”`;
    const op = take(OP) as MatchOp | undefined;
    if (op === undefined) return `one of = != =~ !~ is expected behind ${name}`;
    const value = take(STRING);
    if (value === undefined) return `a value in double quotes is expected behind ${name}${op}`;
    matchers.push({ name, op, value: unescape(value) });
    if (rest === '') break;
    if (!rest.startsWith(',')) return `a comma is expected at “${rest}”`;
    rest = rest.slice(1).trimStart();
  }
  return matchers;
}

/** The selector of these matchers, without braces; empty for none. */
export function formatSelector(matchers: readonly Matcher[]): string {
  return matchers
    .map(({ name, op, value }) => {
      const shown = /^[A-Za-z_][A-Za-z0-9_]*$/.test(name) ? name : `"${escape(name)}"`;
      return `${shown}${op}"${escape(value)}"`;
    })
    .join(',');
}

/** `matchers` with `next` in place of every other one of the same name and operator. */
export function withMatcher(matchers: readonly Matcher[], next: Matcher): Matcher[] {
  return [...matchers.filter((old) => old.name !== next.name || old.op !== next.op), next];
}
