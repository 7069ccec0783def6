// Columns that sort a table. The column and its direction are part of the URL: `self`, `-self`.

import type { ComponentChildren } from 'preact';
import { go } from '../state.ts';

export interface Sort<C extends string> {
  readonly column: C;
  /** Largest, or Z, first. */
  readonly down: boolean;
}

/** What the URL says, or `fallback` where that is no column of this table. */
export function parseSort<C extends string>(text: string, columns: readonly C[], fallback: Sort<C>): Sort<C> {
  const column = columns.find((one) => one === text.replace('-', ''));
  return column === undefined ? fallback : { column, down: text.startsWith('-') };
}

interface Props<C extends string> {
  readonly column: C;
  readonly sort: Sort<C>;
  /** Figures begin with the largest, text with A. */
  readonly numeric?: boolean;
  readonly class?: string;
  readonly children: ComponentChildren;
}

export function SortHead<C extends string>({ column, sort, numeric, class: name, children }: Props<C>) {
  const mine = sort.column === column;
  const next = mine ? !sort.down : numeric === true;
  return (
    <th
      scope="col"
      class={`${numeric ? 'num ' : ''}${name ?? ''}`}
      aria-sort={mine ? (sort.down ? 'descending' : 'ascending') : 'none'}
    >
      <button type="button" onClick={() => go({ sort: `${next ? '-' : ''}${column}` }, 'replace')}>
        {children}
        {mine ? <span aria-hidden="true">{sort.down ? ' ↓' : ' ↑'}</span> : null}
      </button>
    </th>
  );
}
