// Locks: which were waited for longest, who waits, who holds; a row leads to the flame graph of its waits.

import { computed } from '@preact/signals';
import type { LockFunction, Locks as Answer, LockRow } from '../api.ts';
import { neverFed } from '../explore.ts';
import { count, countShort, digits3, duration, share, threads } from '../format.ts';
import { shortName, visible } from '../names.ts';
import { resource } from '../resource.ts';
import { filterError, filterParam, go, matchers, tick, view } from '../state.ts';
import { exploreOf, type ViewState } from '../url.ts';
import { FirstRun, NothingHere } from '../widgets/empty.tsx';
import { QueryBar } from '../widgets/filter.tsx';
import { FindField } from '../widgets/find.tsx';
import { Link } from '../widgets/link.tsx';
import { Meter } from '../widgets/meter.tsx';
import { Problem, Warnings } from '../widgets/notice.tsx';
import { parseSort, SortHead } from '../widgets/sort.tsx';
import { Figure } from './services.tsx';

/** Rows that are asked for, and waiters and holders of each. */
const ROWS_MAX = 200;
const CALLERS_MAX = 3;

export const locks = resource<Answer>(
  () =>
    view.value.page === 'locks' && filterError.value === ''
      ? {
          path: '/locks',
          params: {
            from: view.value.from,
            to: view.value.to,
            filter: filterParam.value,
            limit: ROWS_MAX,
            callers: CALLERS_MAX,
          },
          turn: tick.value,
        }
      : null,
  (answer) => answer,
);

const COLUMNS = ['lock', 'wait', 'contentions', 'mean'] as const;
const sort = computed(() => parseSort(view.value.sort, COLUMNS, { column: 'wait', down: true }));

const rows = computed(() => {
  const wanted = view.value.find.trim().toLowerCase();
  const { column, down } = sort.value;
  const value = (row: LockRow) =>
    column === 'wait' ? row.wait_ns : column === 'mean' ? (row.mean_ns ?? 0) : row.contentions;
  const text = (row: LockRow) =>
    [row.lock, row.kind, row.service, row.executable, ...[...row.waiters, ...row.holders].map((one) => one.name)]
      .join('\n')
      .toLowerCase();
  return (locks.data.value?.rows ?? [])
    .filter((row) => wanted === '' || text(row).includes(wanted))
    .toSorted((a, b) => {
      const order = column === 'lock' ? a.lock.localeCompare(b.lock) : value(a) - value(b);
      return order * (down ? -1 : 1) || b.wait_ns - a.wait_ns;
    });
});

/** What is asked for inside the braces of a filter. */
const inside = (filter: string) => filter.replace(/^\{/, '').replace(/\}$/, '');

/** The flame graph of one lock's waits, within the filter that is there. */
function graphOf(row: LockRow): ViewState {
  const q = [inside(view.value.q), inside(row.filter)].filter((part) => part !== '').join(',');
  return exploreOf({ ...view.value, type: 'lock' }, q);
}

/** Functions that wait or hold, each with its share of the whole. */
function Callers<T extends LockFunction>({
  list,
  value,
  whole,
}: {
  list: readonly T[];
  value: (one: T) => number;
  whole: number;
}) {
  if (list.length === 0) return <span class="muted">–</span>;
  return (
    <ul class="callers">
      {list.map((one, i) => (
        <li key={i} title={one.stack.map(visible).join('\n')}>
          <span class="caller-bar" style={{ width: `${whole > 0 ? Math.min(100, (value(one) / whole) * 100) : 0}%` }} />
          <span class="caller-name">{shortName(visible(one.name), one.kind)}</span>
          <span class="num muted">{share(value(one), whole)}</span>
        </li>
      ))}
    </ul>
  );
}

function Row({ row, most, total }: { row: LockRow; most: number; total: number }) {
  const to = graphOf(row);
  const name = row.lock === '' ? 'address unknown' : visible(row.lock);
  const more = row.services > 1 ? ` and ${count(row.services - 1)} more` : '';
  const place = [
    `${visible(row.service === '' ? 'no service' : row.service)}${more}`,
    row.executable !== row.service && row.executable !== '' ? visible(row.executable) : '',
    row.pid === '' ? '' : `pid ${visible(row.pid)}`,
    row.host === '' ? '' : visible(row.host),
  ].filter((part) => part !== '');
  return (
    <tr onClick={() => (row.filter === '' ? undefined : go(to))}>
      <th scope="row">
        {row.filter === '' ? name : <Link to={to}>{name}</Link>}
        <div class="lock-place muted">
          <span class="lock-kind">{visible(row.kind)}</span> {place.join(' · ')}
        </div>
      </th>
      <td class="lock-wait">
        <Meter value={row.wait_ns} most={most} />
        <div>
          <b>{duration(row.wait_ns / 1e6)}</b> <span class="muted">{share(row.wait_ns, total)}</span>
        </div>
        <div class="muted">{threads(row.threads, 'waiting threads')}</div>
      </td>
      <td class="num">{countShort(row.contentions)}</td>
      <td class="num">{row.mean_ns === null ? '–' : duration(row.mean_ns / 1e6)}</td>
      <td>
        <Callers list={row.waiters} value={(one) => one.wait_ns} whole={row.wait_ns} />
      </td>
      <td>
        <Callers list={row.holders} value={(one) => one.samples} whole={row.holder_samples} />
      </td>
    </tr>
  );
}

function Table({ answer }: { answer: Answer }) {
  const shown = rows.value;
  const most = Math.max(0, ...answer.rows.map((row) => row.wait_ns));
  return (
    <div class="services-table locks-table">
      <table>
        <thead>
          <tr>
            <SortHead column="lock" sort={sort.value} class="col-lock">
              Lock
            </SortHead>
            <SortHead column="wait" sort={sort.value} class="col-wait">
              Waited for
            </SortHead>
            <SortHead column="contentions" sort={sort.value} class="col-count" numeric>
              Waits
            </SortHead>
            <SortHead column="mean" sort={sort.value} class="col-count" numeric>
              Mean
            </SortHead>
            <th scope="col">Who waits</th>
            <th scope="col">Who holds</th>
          </tr>
        </thead>
        <tbody>
          {shown.map((row) => (
            <Row key={`${row.place}\n${row.filter}\n${row.lock}`} row={row} most={most} total={answer.total.wait_ns} />
          ))}
          {answer.others.locks > 0 && view.value.find === '' ? (
            <tr class="others">
              <th scope="row">{count(answer.others.locks)} other locks</th>
              <td class="lock-wait">
                {duration(answer.others.wait_ns / 1e6)}{' '}
                <span class="muted">{share(answer.others.wait_ns, answer.total.wait_ns)}</span>
              </td>
              <td class="num">{countShort(answer.others.contentions)}</td>
              <td />
              <td />
              <td />
            </tr>
          ) : null}
        </tbody>
      </table>
    </div>
  );
}

function Strip({ answer }: { answer: Answer }) {
  const { total, coverage } = answer;
  return (
    <section class="strip" aria-label="All locks">
      <Figure
        label="Waiting for locks"
        value={digits3(coverage.cores)}
        unit="threads"
        note={`on average over ${duration(answer.to - answer.from)}`}
      />
      <Figure label="Time waited" value={duration(total.wait_ns / 1e6)} note="added over threads" />
      <Figure label="Waits" value={countShort(total.contentions)} />
      <Figure label="Locks" value={count(answer.locks)} />
      <Figure label="Hosts reporting" value={count(coverage.hosts)} />
    </section>
  );
}

export function Locks() {
  if (neverFed.value) return <FirstRun />;
  const answer = locks.data.value;
  const error = locks.error.value;
  const filtered = matchers.value.length > 0;
  return (
    <main class={`services locks${locks.loading.value ? ' loading' : ''}`}>
      <h1 class="spoken">Locks</h1>
      <QueryBar />
      {error ? <Problem error={error} stale={answer !== null} /> : null}
      {answer ? (
        <>
          <Warnings warnings={answer.warnings.map(visible)} />
          <Strip answer={answer} />
          {answer.rows.length === 0 ? (
            <NothingHere>
              <p>
                {filtered
                  ? 'No wait for a lock of this range matches the filter.'
                  : 'No wait for a lock in this range: nothing was contended, or no agent watches waits.'}
              </p>
              <p class="nothing-actions">
                {filtered ? (
                  <button type="button" class="primary" onClick={() => go({ q: '' })}>
                    Clear the filter
                  </button>
                ) : null}
                <button type="button" onClick={() => go({ from: 'now-24h', to: 'now' })}>
                  Look at the last 24 h
                </button>
              </p>
            </NothingHere>
          ) : (
            <>
              <div class="services-tools">
                <FindField
                  label="Find locks and functions"
                  placeholder="lock or function  /"
                  value={view.value.find}
                  onFind={(find) => go({ find }, 'replace')}
                />
                <span class="muted" aria-live="polite">
                  {rows.value.length === answer.rows.length
                    ? `${count(answer.locks)} locks`
                    : `${count(rows.value.length)} of ${count(answer.rows.length)} locks shown`}
                </span>
              </div>
              <Table answer={answer} />
            </>
          )}
        </>
      ) : null}
    </main>
  );
}
