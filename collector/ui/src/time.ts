// Ranges of time: presets, what the API's relative times mean, steps along the axis.

import { signal } from '@preact/signals';
import { clock } from './format.ts';
import { go, view } from './state.ts';

export const PRESETS: readonly (readonly [string, string])[] = [
  ['5m', 'now-5m'],
  ['15m', 'now-15m'],
  ['1h', 'now-1h'],
  ['6h', 'now-6h'],
  ['24h', 'now-24h'],
  ['7d', 'now-7d'],
];

const UNITS_MS: Record<string, number> = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };

/** What the collector's clock is ahead of this browser's, ms; ranges are resolved by the collector's. */
export const clockSkew = signal(0);

/** Unix milliseconds of one of the API's times; NaN if it is none. */
export function resolveTime(text: string, now: number): number {
  const relative = /^now(?:-(\d+)([smhdw]))?$/.exec(text);
  if (relative) return now - (relative[1] === undefined ? 0 : Number(relative[1]) * (UNITS_MS[relative[2] ?? ''] ?? 0));
  if (/^\d+$/.test(text)) return Number(text);
  return Date.parse(text);
}

/** The preset that a range is, or undefined. */
export function presetOf(from: string, to: string): string | undefined {
  return to === 'now' ? PRESETS.find(([, start]) => start === from)?.[0] : undefined;
}

/** A range in words: "last 1h" or "Nov 28 14:03 – 15:03". */
export function rangeText(from: string, to: string, now: number): string {
  const preset = presetOf(from, to);
  if (preset) return `last ${preset}`;
  if (to === 'now' && /^now-\d+[smhdw]$/.test(from)) return `last ${from.slice(4)}`;
  return `${clock(resolveTime(from, now), now, false)} – ${clock(resolveTime(to, now), now, false)}`;
}

/** Moves the range by half its width. */
export function shiftRange(step: 1 | -1): void {
  const now = Date.now() + clockSkew.peek();
  const { from, to } = view.peek();
  const start = resolveTime(from, now);
  const end = resolveTime(to, now);
  if (!(end > start)) return;
  const by = (step * (end - start)) / 2;
  go({ from: String(Math.round(start + by)), to: String(Math.round(end + by)), sel: null });
}
