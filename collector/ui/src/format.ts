// Numbers as text: cores, shares, times, bytes. Knows nothing of the page.

const NBSP = '\u00a0';
const MINUS = '\u2212';

/** Three significant digits without exponent: 1234 -> "1,234", 11.4, 0.0834. */
export function digits3(value: number): string {
  if (!Number.isFinite(value)) return '–';
  if (value === 0) return '0';
  const sign = value < 0 ? MINUS : '';
  const size = Math.abs(value);
  if (size >= 99.95) return sign + count(Math.round(size));
  const decimals = Math.min(6, Math.max(0, 2 - Math.floor(Math.log10(size * (1 + 1e-9)))));
  let text = size.toFixed(decimals);
  // 9.996 rounds to 10.00: one digit too many.
  if (Number(text) >= 10 ** (3 - decimals) && decimals > 0) text = size.toFixed(decimals - 1);
  return sign + text;
}

/** "11.4 cores", "83.4 mcores". */
export function cores(value: number): string {
  const size = Math.abs(value);
  if (size === 0) return `0${NBSP}cores`;
  if (size < 0.0001) return `<0.1${NBSP}mcores`;
  if (size < 0.9995) return `${digits3(value * 1000)}${NBSP}mcores`;
  return `${digits3(value)}${NBSP}cores`;
}

/** "1.25 waiting threads": a number of threads on average. */
export function threads(value: number, unit: string): string {
  const text = value > 0 && value < 0.0001 ? '<0.0001' : digits3(value);
  return `${text}${NBSP}${unit}`;
}

/** Cores for a column of a table, where the head names the unit: "11.4", "0.0834". */
export function coresCell(value: number): string {
  if (value > 0 && value < 0.0001) return '<0.0001';
  return digits3(value);
}

/** A share of 1: "12.3 %", "<0.1 %", "0 %". */
export function share(part: number, whole: number): string {
  if (!(whole > 0)) return '–';
  const percent = (part / whole) * 100;
  const size = Math.abs(percent);
  if (size === 0) return `0${NBSP}%`;
  const sign = percent < 0 ? MINUS : '';
  if (size < 0.1) return `${sign}<0.1${NBSP}%`;
  // Rounding must not say that all of it is there when some is not.
  const text = size < 100 && size >= 99.95 ? '>99.9' : size.toFixed(1);
  return `${sign}${text === '100.0' ? '100' : text}${NBSP}%`;
}

/** Whole numbers with thousands separators: "61,668". */
export function count(value: number): string {
  const text = Math.abs(Math.round(value))
    .toString()
    .replace(/\B(?=(\d{3})+$)/g, ',');
  return value < 0 && text !== '0' ? MINUS + text : text;
}

/** Short counts: "1.17 M", "61.7 k", "312". */
export function countShort(value: number): string {
  const size = Math.abs(value);
  if (size < 1000) return count(value);
  for (const [unit, name] of [
    [1e12, 'T'],
    [1e9, 'G'],
    [1e6, 'M'],
    [1e3, 'k'],
  ] as const) {
    if (size >= unit * 0.9995) return `${digits3(value / unit)}${NBSP}${name}`;
  }
  return count(value);
}

/** CPU time: "61,668 CPU-s", "17.1 CPU-h". */
export function cpuTime(nanoseconds: number): string {
  const seconds = nanoseconds / 1e9;
  const size = Math.abs(seconds);
  if (size >= 360_000) return `${digits3(seconds / 3600)}${NBSP}CPU-h`;
  if (size >= 0.9995 || size === 0) return `${digits3(seconds)}${NBSP}CPU-s`;
  return `${digits3(seconds * 1000)}${NBSP}CPU-ms`;
}

/** A span of time: "3 h 5 min", "12.5 s", "80 ms". */
export function duration(milliseconds: number): string {
  const ms = Math.abs(milliseconds);
  if (ms < 1) return `${digits3(ms * 1000)}${NBSP}µs`;
  if (ms < 1000) return `${digits3(ms)}${NBSP}ms`;
  if (ms < 60_000) return `${Number((ms / 1000).toFixed(1))}${NBSP}s`;
  const two = (whole: number, unit: string, rest: number, small: string) =>
    `${whole}${NBSP}${unit}${rest > 0 ? `${NBSP}${rest}${NBSP}${small}` : ''}`;
  const minutes = Math.round(ms / 60_000);
  if (minutes < 60) {
    const seconds = Math.round(ms / 1000);
    return two(Math.floor(seconds / 60), 'min', seconds % 60, 's');
  }
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return two(hours, 'h', minutes % 60, 'min');
  return two(Math.floor(hours / 24), 'd', hours % 24, 'h');
}

/** Bytes in IEC units: "1.2 GiB". */
export function bytes(value: number): string {
  const names = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let size = value;
  let step = 0;
  while (Math.abs(size) >= 1023.5 && step < names.length - 1) {
    size /= 1024;
    step += 1;
  }
  return `${step === 0 ? count(size) : digits3(size)}${NBSP}${names[step]}`;
}

/** A value in its type's unit. */
export function valueText(value: number, unit: string): string {
  switch (unit) {
    case 'nanoseconds':
      return duration(value / 1e6);
    case 'bytes':
      return bytes(value);
    case 'count':
      return countShort(value);
    default:
      return `${countShort(value)}${NBSP}${unit}`;
  }
}

const pad = (value: number) => String(value).padStart(2, '0');

/** Local time of day, with the date where it is not today: "14:03:20", "Nov 28 14:03". */
export function clock(ms: number, now: number, seconds = true): string {
  const date = new Date(ms);
  const today = new Date(now);
  const time = `${pad(date.getHours())}:${pad(date.getMinutes())}${seconds ? `:${pad(date.getSeconds())}` : ''}`;
  if (date.toDateString() === today.toDateString()) return time;
  return `${date.toLocaleString('en', { month: 'short', day: 'numeric' })} ${time}`;
}
