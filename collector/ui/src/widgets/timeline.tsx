// The time line: what used the CPU when, stacked; dragging picks the part that the flame graph shows.

import { useSignal, useSignalEffect } from '@preact/signals';
import { useLayoutEffect, useRef } from 'preact/hooks';
import uPlot from 'uplot';
import type { Series } from '../api.ts';
import { series, splitBy } from '../explore.ts';
import { clock, cores, share, threads, valueText } from '../format.ts';
import { visible } from '../names.ts';
import { type CanvasTheme, REASON_LABEL, reasonGroup } from '../palette.ts';
import { blend, FONT_FAMILY } from '../flame/render.ts';
import { canvasTheme, go, holdRefresh, matchers, setMatchers, view } from '../state.ts';
import { withMatcher } from '../selector.ts';
import { clockSkew, resolveTime } from '../time.ts';

const HEIGHT_PX = 136;
/** A drag narrower than this is a click: it takes the brush away. */
const DRAG_MIN_PX = 4;

interface Band {
  readonly name: string;
  /** Null for what is not one value: other, everything. */
  readonly value: string | null;
  readonly colour: string;
  readonly values: readonly number[];
}

/** Which colour a value of a label has; it keeps it while the order of the series changes under it. */
const slots = new Map<string, number>();

function slotsOf(keys: readonly string[]): number[] {
  const taken = new Set<number>();
  for (const key of keys) {
    const slot = slots.get(key);
    if (slot !== undefined && taken.has(slot)) slots.delete(key);
    else if (slot !== undefined) taken.add(slot);
  }
  return keys.map((key) => {
    let slot = slots.get(key);
    if (slot === undefined) {
      slot = 0;
      while (taken.has(slot)) slot += 1;
      taken.add(slot);
      slots.set(key, slot);
    }
    return slot;
  });
}

/** Reasons that share a colour lie above each other here: each further one is paler. */
const PALER = 0.28;

/** The colours of reasons, in the order of their bands. */
function reasonColours(reasons: readonly string[], theme: CanvasTheme): string[] {
  const used = new Map<string, number>();
  return reasons.map((reason) => {
    const group = reasonGroup(reason);
    const before = used.get(group) ?? 0;
    used.set(group, before + 1);
    return blend(theme.fills[group], theme.background, Math.min(0.75, before * PALER));
  });
}

function bandsOf(answer: Series, by: string, theme: CanvasTheme): Band[] {
  const values = answer.series.map((one) => one.labels[by] ?? '');
  const colours =
    by === REASON_LABEL
      ? reasonColours(values, theme)
      : slotsOf(values.map((value) => `${by}\n${value}`)).map((slot) => theme.series[slot % theme.series.length] ?? '');
  const bands: Band[] = answer.series.map((one, i) => {
    const value = by === '' ? null : (one.labels[by] ?? '');
    const name = value === null ? 'all' : value === '' ? `no ${by}` : visible(value);
    return {
      name,
      value,
      colour: colours[i] as string,
      values: one.values,
    };
  });
  if (answer.other) bands.push({ name: 'other', value: null, colour: theme.other, values: answer.other });
  return bands;
}

/** Columns of uPlot: time in seconds, then running sums, topmost band first (so that each covers what is below it). */
function stack(answer: Series, bands: readonly Band[]): uPlot.AlignedData {
  const size = Math.max(0, ...bands.map((band) => band.values.length));
  const times = Array.from({ length: size }, (_, i) => (answer.t0 + i * answer.step) / 1000);
  const sum = new Array<number>(size).fill(0);
  const columns = bands.map((band) => {
    for (let i = 0; i < size; i += 1) sum[i] = (sum[i] as number) + (band.values[i] ?? 0);
    return sum.slice();
  });
  // A step line ends where its last bucket begins: repeat the last value at the bucket's end.
  times.push((answer.t0 + size * answer.step) / 1000);
  if (size === 0) {
    // Nothing at all: the axis still shows the range that was asked for.
    const now = Date.now() + clockSkew.peek();
    return [
      [resolveTime(view.peek().from, now) / 1000, resolveTime(view.peek().to, now) / 1000],
      ...columns.map(() => [0, 0]),
    ];
  }
  for (const column of columns) column.push(column[size - 1] ?? 0);
  return [times, ...columns.reverse()];
}

function options(
  width: number,
  bands: readonly Band[],
  theme: CanvasTheme,
  unit: string,
  hooks: uPlot.Hooks.Arrays,
): uPlot.Options {
  const axis = {
    stroke: theme.textMuted,
    font: `11px ${FONT_FAMILY}`,
    ticks: { show: false },
    grid: { stroke: theme.grid, width: 1 },
  };
  const stepped = uPlot.paths.stepped?.({ align: 1 });
  return {
    width,
    height: HEIGHT_PX,
    padding: [16, 2, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false, dist: DRAG_MIN_PX } },
    scales: { x: { time: true }, y: { range: (_, __, max) => [0, max > 0 ? max * 1.08 : 1.15] } },
    axes: [
      {
        ...axis,
        size: 22,
        space: 90,
        grid: { show: false },
        values: (_, splits, __, ___, step) => splits.map((s) => clock(s * 1000, Date.now(), step < 60)),
      },
      {
        ...axis,
        size: 62,
        space: 28,
        values: (_, splits) =>
          splits.map((v) =>
            unit === 'cores' || unit === 'threads' ? String(Number(v.toPrecision(3))) : valueText(v, unit),
          ),
      },
    ],
    series: [
      {},
      ...bands.toReversed().map((band) => ({
        label: band.name,
        stroke: band.colour,
        width: 0,
        fill: band.colour,
        points: { show: false },
        ...(stepped ? { paths: stepped } : {}),
      })),
    ],
    hooks,
  };
}

/** What identifies a drawing: a new one is made when this changes, else only its data. */
const shapeOf = (bands: readonly Band[], theme: CanvasTheme, unit: string) =>
  `${theme.background}|${unit}|${bands.map((band) => band.name + band.colour).join('\n')}`;

export function Timeline() {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shape = useRef('');
  const cursor = useSignal<number | null>(null);
  const shownSelf = useRef(false);

  const brush = (chart: uPlot) => {
    const { sel } = view.peek();
    const left = sel ? chart.valToPos(sel[0] / 1000, 'x') : 0;
    const right = sel ? chart.valToPos(sel[1] / 1000, 'x') : 0;
    shownSelf.current = true;
    chart.setSelect(
      { left, width: sel ? Math.max(1, right - left) : 0, top: 0, height: chart.over.clientHeight },
      false,
    );
    shownSelf.current = false;
  };

  const picked = (chart: uPlot) => {
    if (shownSelf.current) return;
    const { left, width } = chart.select;
    if (width < DRAG_MIN_PX) return;
    const from = Math.round(chart.posToVal(left, 'x') * 1000);
    const to = Math.round(chart.posToVal(left + width, 'x') * 1000);
    if (to > from) go({ sel: [from, to] });
  };

  useSignalEffect(() => {
    const answer = series.data.value;
    const theme = canvasTheme.value;
    const element = box.current;
    if (!answer || !element) return;
    const bands = bandsOf(answer, splitBy.peek(), theme);
    const data = stack(answer, bands);
    const next = shapeOf(bands, theme, answer.value_unit);
    if (plot.current && shape.current === next) {
      plot.current.setData(data);
    } else {
      plot.current?.destroy();
      plot.current = new uPlot(
        options(element.clientWidth, bands, theme, answer.value_unit, {
          setSelect: [picked],
          setCursor: [(chart) => (cursor.value = chart.cursor.idx ?? null)],
        }),
        data,
        element,
      );
      plot.current.over.addEventListener('dblclick', () => go({ sel: null }));
      plot.current.over.addEventListener('mousemove', () => holdRefresh(2000));
      shape.current = next;
    }
    brush(plot.current);
  });
  useSignalEffect(() => {
    view.value.sel;
    if (plot.current) brush(plot.current);
  });
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(() => {
      if (!plot.current || element.clientWidth === plot.current.width) return;
      plot.current.setSize({ width: element.clientWidth, height: HEIGHT_PX });
      brush(plot.current);
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
      shape.current = '';
    };
  }, []);

  const answer = series.data.value;
  const by = splitBy.value;
  const bands = answer ? bandsOf(answer, by, canvasTheme.value) : [];
  const at = cursor.value;
  const amountOf = (value: number) =>
    answer?.value_unit === 'cores'
      ? cores(value)
      : answer?.value_unit === 'threads'
        ? threads(value, 'threads')
        : valueText(value, answer?.unit ?? '');
  const sum = (values: readonly number[]) => values.reduce((a, b) => a + b, 0);
  const whole = sum(bands.map((band) => sum(band.values)));
  const { sel } = view.value;
  return (
    <section class="timeline" aria-label="Time line">
      {answer ? (
        <span class="timeline-unit muted" title={answer.value_unit === 'threads' ? 'Threads on average' : undefined}>
          {answer.value_unit}
        </span>
      ) : null}
      <div class="timeline-plot" ref={box} />
      <div class="timeline-foot">
        <ul class="series" aria-label={by === '' ? 'Series' : `By ${by}`}>
          {bands.map((band) => (
            <li key={band.name}>
              <Swatch colour={band.colour} />
              {band.value !== null && by !== '' ? (
                <button
                  type="button"
                  title={`Only ${band.name}`}
                  onClick={() =>
                    setMatchers(withMatcher(matchers.peek(), { name: by, op: '=', value: band.value ?? '' }))
                  }
                >
                  {band.name}
                </button>
              ) : (
                <span>{band.name}</span>
              )}
              <span class="muted">{at === null ? share(sum(band.values), whole) : amountOf(band.values[at] ?? 0)}</span>
            </li>
          ))}
        </ul>
        <span class="timeline-when muted">
          {at !== null && answer
            ? clock(answer.t0 + at * answer.step, Date.now())
            : sel
              ? `${clock(sel[0], Date.now())} – ${clock(sel[1], Date.now())}`
              : 'drag to narrow the flame graph'}
          {sel ? (
            <button type="button" class="clear" onClick={() => go({ sel: null })}>
              whole range
            </button>
          ) : null}
        </span>
      </div>
    </section>
  );
}

function Swatch({ colour }: { colour: string }) {
  return <span class="swatch" style={{ background: colour }} aria-hidden="true" />;
}
