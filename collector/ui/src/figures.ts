// Values of a flame graph as text. Time of threads over the time that their hosts reported is how many there were on
// average: cores where it is CPU time, threads where it is any other; the type's own unit elsewhere.

import type { Losses } from './api.ts';
import * as format from './format.ts';
import type { FlameModel } from './flame/model.ts';

/** What is needed to read values of one answer. */
export type Scale = Pick<FlameModel, 'unit' | 'total' | 'cores' | 'periodNs'>;

/** True for CPU time. */
export function isCpu(type: string): boolean {
  return type === 'cpu';
}

/** True where waiting is what is measured, not work. */
export function isWait(type: string): boolean {
  return /^(off_cpu|lock|delay|block|mutex|contention)(_|:|$)/.test(type);
}

/** What a value over time is a number of, on average; null where that means nothing. */
export function rateUnit(type: string, unit: string): 'cores' | 'waiting threads' | 'threads' | null {
  if (unit !== 'nanoseconds') return null;
  return isCpu(type) ? 'cores' : isWait(type) ? 'waiting threads' : 'threads';
}

const averageOf = (value: number, scale: Scale) => (scale.total > 0 ? (value / scale.total) * scale.cores : 0);

/** "1.2 cores", "1.2 waiting threads" or "12 MiB". */
export function amount(value: number, scale: Scale, type: string): string {
  const unit = rateUnit(type, scale.unit);
  if (unit === 'cores') return format.cores(averageOf(value, scale));
  if (unit) return format.threads(averageOf(value, scale), unit);
  return format.valueText(value, scale.unit);
}

/** As `amount` for a table whose head names the unit. */
export function amountCell(value: number, scale: Scale, type: string): string {
  if (rateUnit(type, scale.unit)) return format.coresCell(averageOf(value, scale));
  return format.valueText(value, scale.unit);
}

/** Samples behind a value; null where the period is not known. */
export function samplesOf(value: number, scale: Scale): number | null {
  return scale.unit === 'nanoseconds' && scale.periodNs > 0 ? Math.round(value / scale.periodNs) : null;
}

/** Below this a value says little about the next minute: 1.96 / sqrt(30) is 36 %. */
export const LOW_SAMPLES = 30;

/** True where so few samples stand behind a value that its digits mislead. */
export function isLow(value: number, scale: Scale): boolean {
  const samples = samplesOf(value, scale);
  return samples !== null && samples > 0 && samples < LOW_SAMPLES;
}

/** Share of the selection that was cut and of its hosts' samples that were lost; null where nothing was. */
export function lossesText({ cut, lost, sent }: Losses, total: number): string | null {
  const cutTotal = cut.reduce((sum, one) => sum + one.total, 0);
  const lostSamples = lost.reduce((sum, one) => sum + one.samples, 0);
  const parts = [
    cutTotal > 0 ? `${format.share(cutTotal, total)} cut` : '',
    lostSamples > 0 ? `${format.share(lostSamples, sent + lostSamples)} lost` : '',
  ];
  return parts.filter(Boolean).join(', ') || null;
}
