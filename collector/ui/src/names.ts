// Function names for the eye: characters that could deceive are escaped, long names are shortened by the rules of
// their language. The full name is never lost, it is in the tooltip and on copy. Knows nothing of the page.

// C0, C1, soft hyphen, zero-width and bidirectional controls, line and paragraph separators, variation selectors,
// tags, byte order mark, interlinear annotations and lone surrogates: none of them shows, all of them can deceive.
const DECEIVING =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\u{e0000}-\u{e0fff}]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/gu;

/** Every control, bidirectional or invisible character as `\u{..}`. */
export function visible(text: string): string {
  return text.replace(DECEIVING, (found) => `\\u{${(found.codePointAt(0) ?? 0).toString(16)}}`);
}

/** Removes what stands between balanced `open` and `close`; an unbalanced text comes back as it is. */
function without(text: string, open: string, close: string): string {
  let depth = 0;
  let out = '';
  for (let i = 0; i < text.length; i += 1) {
    const c = text[i];
    if (c === open) depth += 1;
    else if (c === close && !(close === '>' && (text[i - 1] === '-' || text[i - 1] === '='))) {
      depth -= 1;
      if (depth < 0) return text;
    } else if (depth === 0) out += c;
  }
  return depth === 0 ? out : text;
}

/** Where the bracket that opens a text closes; -1 where it does not. */
function closing(text: string): number {
  let depth = 0;
  for (let i = 0; i < text.length; i += 1) {
    if (text[i] === '<') depth += 1;
    else if (text[i] === '>' && text[i - 1] !== '-' && text[i - 1] !== '=') {
      depth -= 1;
      if (depth === 0) return i;
    }
  }
  return -1;
}

/** `Class::method` of a C++ or Rust name: without template arguments, parameters and outer namespaces. */
function nativeShort(name: string): string {
  // operator<, operator-> and friends hold brackets that do not balance.
  if (name.includes('operator')) return name;
  let text = name.replace(/\(anonymous namespace\)/g, '{anon}');
  // Rust: `<T as Trait>::method` keeps T, `<T>::method` loses its brackets.
  const close = text.startsWith('<') ? closing(text) : -1;
  if (close > 0) {
    const type = without(text.slice(1, close), '<', '>')
      .replace(/ as .*$/, '')
      .replace(/^&(mut )?/, '');
    text = lastParts(type, 1) + text.slice(close + 1);
  }
  text = without(without(text, '<', '>'), '(', ')')
    .replace(/(::){2,}/g, '::')
    .replace(/^::/, '')
    .replace(/::$/, '')
    .replace(/\s+(const|volatile|&|&&)$/g, '')
    .replace(/ \[clone [^\]]*\]/g, '')
    .replace(/^(?:[\w:*& ]+ )(?=[\w~:{}]+$)/, '')
    .trim();
  return lastParts(text, 2) || name;
}

/** The last `n` parts of a `::` path. `{{closure}}` and `{closure#0}` do not count, they say nothing alone. */
function lastParts(path: string, n: number): string {
  const parts = path.split('::');
  let keep = 0;
  let named = 0;
  while (keep < parts.length && named < n) {
    keep += 1;
    if (!/^\{+\w*closure/.test(parts[parts.length - keep] ?? '')) named += 1;
  }
  return parts.slice(parts.length - keep).join('::');
}

/** Go: the import path in front of the package's last part goes away. */
function goShort(name: string): string {
  const bracket = name.indexOf('[');
  const head = bracket < 0 ? name : name.slice(0, bracket);
  const slash = head.lastIndexOf('/');
  return slash < 0 ? name : name.slice(slash + 1);
}

/** JVM: `com.example.Class.method(args)` becomes `Class.method`. */
function jvmShort(name: string): string {
  const paren = name.indexOf('(');
  const head = (paren < 0 ? name : name.slice(0, paren)).replaceAll('/', '.');
  const parts = head.split('.');
  return parts.length <= 2 ? head : parts.slice(-2).join('.');
}

/** A shorter form of a shown name for narrow frames; the name itself where its language is not known. */
export function shortName(name: string, kind: string): string {
  // `[unwind: no table]`, `libc.so.6+0x1234`: nothing to take away.
  if (name.startsWith('[') || /\+0x[0-9a-f]+$/.test(name)) return name;
  switch (kind) {
    case 'native':
    case 'rust':
      return nativeShort(name);
    case 'go':
      return goShort(name);
    case 'jvm':
      return jvmShort(name);
    default:
      return name;
  }
}

/** `text` cut to `max` characters with an ellipsis at the end; never cuts a surrogate pair. */
export function cut(text: string, max: number): string {
  if (text.length <= max) return text;
  if (max < 2) return '';
  let end = max - 1;
  const last = text.charCodeAt(end - 1);
  if (last >= 0xd800 && last <= 0xdbff) end -= 1;
  return `${text.slice(0, end)}…`;
}
