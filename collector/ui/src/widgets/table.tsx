// The top table: functions with self and total, sorted, only the rows in sight as elements.

import { computed, useSignal } from '@preact/signals';
import { useLayoutEffect, useRef } from 'preact/hooks';
import { flame, functions, hoveredNode, matches, pointed, viewTotals, zoomNode } from '../explore.ts';
import { amountCell, isLow, LOW_SAMPLES, rateUnit, type Scale } from '../figures.ts';
import { share } from '../format.ts';
import { shortName, visible } from '../names.ts';
import { groupOf, isReason, kindName } from '../palette.ts';
import { go, view } from '../state.ts';
import { parseSort, SortHead } from './sort.tsx';

const ROW_PX = 24;
/** Rows drawn above and below those in sight, so that a quick scroll does not show gaps. */
const SPARE_ROWS = 12;

interface Row {
  /** Function of the shown tree; -1 where the tree holds none of it. */
  readonly func: number;
  readonly name: string;
  readonly module: string;
  readonly kind: string;
  readonly self: number;
  readonly total: number;
}

const COLUMNS = ['name', 'module', 'kind', 'self', 'total'] as const;

const keyOf = (kind: string, module: string, name: string) => `${kind}\n${module}\n${name}`;

/** Index of the shown tree's functions by what names them. */
const byKey = computed(() => {
  const all = new Map<string, number>();
  const model = flame.data.value?.model;
  if (model) {
    const { kind, module, name } = model.functions;
    for (let f = 0; f < name.length; f += 1)
      all.set(keyOf(kind[f] as string, module[f] as string, name[f] as string), f);
  }
  return all;
});

/** Rows before search and sort. Of the whole picture the collector's own figures, which know nothing of pruning; of
 * a zoomed part what the tree holds. */
const allRows = computed<{ rows: readonly Row[]; whole: number }>(() => {
  const model = flame.data.value?.model;
  const answer = functions.data.value;
  if (model && zoomNode.value > 0) {
    const totals = viewTotals.value;
    const { name, module, kind } = model.functions;
    const rows: Row[] = [];
    for (let f = 0; totals && f < name.length; f += 1) {
      // Why a thread waits is no function of its own.
      if ((totals.total[f] as number) > 0 && !isReason(kind[f] as string, module[f] as string)) {
        rows.push({
          func: f,
          name: name[f] as string,
          module: module[f] as string,
          kind: kind[f] as string,
          self: totals.self[f] as number,
          total: totals.total[f] as number,
        });
      }
    }
    return { rows, whole: model.total };
  }
  if (!answer) return { rows: [], whole: 0 };
  const index = byKey.value;
  const rows = answer.rows.map((row) => {
    const name = visible(row.name);
    const module = visible(row.module);
    return {
      func: index.get(keyOf(row.kind, module, name)) ?? -1,
      name,
      module,
      kind: row.kind,
      self: row.self,
      total: row.total,
    };
  });
  return { rows, whole: answer.total };
});

const found = computed(() => {
  const { rows } = allRows.value;
  const text = view.value.find.trim().toLowerCase();
  if (text === '') return rows;
  const now = matches.value;
  // Functions outside of the tree are found by text alone: the expression ran over the tree's names.
  if (now)
    return rows.filter((row) =>
      row.func >= 0 ? now.functions[row.func] === 1 : !view.value.regex && row.name.toLowerCase().includes(text),
    );
  return rows;
});

const sort = computed(() => parseSort(view.value.sort, COLUMNS, { column: 'self', down: true }));

const sorted = computed(() => {
  const { column, down } = sort.value;
  const sign = down ? -1 : 1;
  return found.value.toSorted((a, b) => {
    const order = column === 'self' || column === 'total' ? a[column] - b[column] : a[column].localeCompare(b[column]);
    return order * sign || b.self - a.self || a.name.localeCompare(b.name);
  });
});

/** A value; grey and with “~” where too few samples stand behind it. */
function Amount({ value, scale, type }: { value: number; scale: Scale; type: string }) {
  const low = isLow(value, scale);
  return (
    <span class={low ? 'rough' : undefined} title={low ? `fewer than ${LOW_SAMPLES} samples` : undefined}>
      {low ? '~' : ''}
      {amountCell(value, scale, type)}
    </span>
  );
}

export function TopTable() {
  const box = useRef<HTMLDivElement>(null);
  const top = useSignal(0);
  const height = useSignal(600);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(() => (height.value = element.clientHeight));
    observer.observe(element);
    const onScroll = () => {
      const row = Math.floor(element.scrollTop / ROW_PX);
      if (row !== top.peek()) top.value = row;
    };
    element.addEventListener('scroll', onScroll, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener('scroll', onScroll);
      pointed.value = -1;
    };
  }, []);

  const model = flame.data.value?.model;
  const answer = functions.data.value;
  const { type } = view.value;
  const { whole } = allRows.value;
  const scale: Scale =
    model && zoomNode.value > 0
      ? model
      : { unit: answer?.unit ?? '', total: whole, cores: answer?.coverage.cores ?? 0, periodNs: model?.periodNs ?? 0 };
  const rows = sorted.value;
  const first = Math.max(0, Math.min(top.value, rows.length - 1) - SPARE_ROWS);
  const last = Math.min(rows.length, top.value + Math.ceil(height.value / ROW_PX) + SPARE_ROWS);
  const most = Math.max(...rows.slice(0, 1).map((row) => row.self), 1);
  const hovered = model && hoveredNode.value >= 0 ? (model.func[hoveredNode.value] as number) : -1;
  const unit = rateUnit(type, scale.unit) ?? scale.unit;
  // Beside the flame graph there is room for names or for modules.
  const wide = view.value.view === 'table';
  const columns = wide ? 7 : 5;
  return (
    <div class="top-table" ref={box} onMouseLeave={() => (pointed.value = -1)}>
      <table aria-rowcount={rows.length + 1} aria-label={zoomNode.value > 0 ? 'Functions in view' : 'Functions'}>
        <thead>
          <tr>
            <SortHead column="name" sort={sort.value} class="col-name">
              {zoomNode.value > 0 ? 'Function, in view' : 'Function'}
            </SortHead>
            {wide ? (
              <SortHead column="kind" sort={sort.value} class="col-kind">
                Kind
              </SortHead>
            ) : null}
            {wide ? (
              <SortHead column="module" sort={sort.value} class="col-module">
                Module
              </SortHead>
            ) : null}
            <SortHead column="self" sort={sort.value} numeric>
              Self{wide ? `, ${unit}` : ''}
            </SortHead>
            <th scope="col" class="num share">
              %
            </th>
            <SortHead column="total" sort={sort.value} numeric>
              Total{wide ? `, ${unit}` : ''}
            </SortHead>
            <th scope="col" class="num share">
              %
            </th>
          </tr>
        </thead>
        <tbody>
          {first > 0 ? (
            <tr class="gap" aria-hidden="true">
              <td colSpan={columns} style={{ height: `${first * ROW_PX}px` }} />
            </tr>
          ) : null}
          {rows.slice(first, last).map((row, i) => (
            <tr
              key={`${row.kind}\n${row.module}\n${row.name}`}
              aria-rowindex={first + i + 2}
              class={row.func >= 0 && row.func === hovered ? 'hovered' : undefined}
              onMouseEnter={() => (pointed.value = row.func)}
            >
              <td class="col-name">
                {wide ? null : <span class={`kind kind-${groupOf(row.kind)}`} title={kindName(row.kind)} />}
                <button
                  type="button"
                  title={row.module === '' ? row.name : `${row.name}\n${row.module}`}
                  onClick={() => go({ find: view.peek().find === row.name ? '' : row.name, regex: false })}
                >
                  {wide ? row.name : shortName(row.name, row.kind)}
                </button>
              </td>
              {wide ? (
                <td class="col-kind">
                  <span class={`kind kind-${groupOf(row.kind)}`} aria-hidden="true" />
                  {kindName(row.kind)}
                </td>
              ) : null}
              {wide ? (
                <td class="col-module" title={row.module}>
                  {row.module}
                </td>
              ) : null}
              <td class="num bar">
                <span class="bar-fill" style={{ width: `${Math.min(100, (row.self / most) * 100)}%` }} />
                <Amount value={row.self} scale={scale} type={type} />
              </td>
              <td class="num share">{share(row.self, whole)}</td>
              <td class="num">
                <Amount value={row.total} scale={scale} type={type} />
              </td>
              <td class="num share">{share(row.total, whole)}</td>
            </tr>
          ))}
          {last < rows.length ? (
            <tr class="gap" aria-hidden="true">
              <td colSpan={columns} style={{ height: `${(rows.length - last) * ROW_PX}px` }} />
            </tr>
          ) : null}
          {rows.length === 0 ? (
            <tr>
              <td colSpan={columns} class="none">
                {view.value.find === '' ? 'no functions' : 'no function matches the search'}
              </td>
            </tr>
          ) : null}
        </tbody>
      </table>
    </div>
  );
}
