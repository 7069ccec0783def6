// Services: who uses the CPU, most first; a row leads to its flame graph.

import { computed } from '@preact/signals';
import type { ServiceRow, Services as Answer } from '../api.ts';
import { meta, neverFed } from '../explore.ts';
import { isCpu, rateUnit } from '../figures.ts';
import { bytes, count, countShort, cores, coresCell, duration, share, threads } from '../format.ts';
import { visible } from '../names.ts';
import { resource } from '../resource.ts';
import { formatSelector } from '../selector.ts';
import { filterParam, go, tick, view } from '../state.ts';
import { exploreOf, type ViewState } from '../url.ts';
import { FirstRun, NothingHere } from '../widgets/empty.tsx';
import { FindField } from '../widgets/find.tsx';
import { Link } from '../widgets/link.tsx';
import { Meter } from '../widgets/meter.tsx';
import { Problem, Warnings } from '../widgets/notice.tsx';
import { Sparkline } from '../widgets/sparkline.tsx';
import { parseSort, SortHead } from '../widgets/sort.tsx';

/** Rows drawn at once; the filter finds the others. */
const ROWS_MAX = 500;
/** Buckets of the small lines: as many as can be seen in their width. */
const TREND_BUCKETS = 24;

const asked = computed(() =>
  view.value.page === 'services'
    ? { from: view.value.from, to: view.value.to, type: view.value.type, filter: filterParam.value }
    : null,
);

export const services = resource<Answer>(
  () => asked.value && { path: '/services', params: asked.value, turn: tick.value },
  (answer) => answer,
);

/** Neighbouring buckets together, as means, until `TREND_BUCKETS` are left. */
function coarser(values: readonly number[]): number[] {
  const per = Math.max(1, Math.floor(values.length / TREND_BUCKETS));
  const out: number[] = [];
  for (let i = 0; i + per <= values.length; i += per)
    out.push(values.slice(i, i + per).reduce((a, b) => a + b, 0) / per);
  return out;
}

type Column = 'service' | 'cores' | 'samples' | 'hosts' | 'containers' | 'named_share';
const COLUMNS: readonly Column[] = ['service', 'cores', 'samples', 'hosts', 'containers', 'named_share'];

const sort = computed(() => parseSort(view.value.sort, COLUMNS, { column: 'cores', down: true }));

const rows = computed(() => {
  const wanted = view.value.service.trim().toLowerCase();
  const { column, down } = sort.value;
  const sign = down ? -1 : 1;
  return (services.data.value?.rows ?? [])
    .filter((row) => row.service.toLowerCase().includes(wanted))
    .toSorted(
      (a, b) =>
        (column === 'service' ? a.service.localeCompare(b.service) : a[column] - b[column]) * sign || b.cores - a.cores,
    );
});

function exploreState(service: string | null): ViewState {
  return exploreOf(view.value, service === null ? '' : formatSelector([{ name: 'service', op: '=', value: service }]));
}

function Row({ row, most }: { row: ServiceRow; most: number }) {
  const name = row.service === '' ? 'no service' : visible(row.service);
  return (
    <tr onClick={() => go(exploreState(row.service))}>
      <th scope="row">
        <Link to={exploreState(row.service)}>{name}</Link>
      </th>
      <td class="num strong">{coresCell(row.cores)}</td>
      <td class="share-cell">
        <Meter value={row.share} most={most} />
        <span class="num">{share(row.share, 1)}</span>
      </td>
      <td>
        <Sparkline values={coarser(row.trend)} label={`Cores of ${name} over the range`} />
      </td>
      <td class="num">{countShort(row.samples)}</td>
      <td class="num">{count(row.hosts)}</td>
      <td class="num">{count(row.containers)}</td>
      <td class={`num${row.named_share < 0.9 ? ' low' : ''}`}>{share(row.named_share, 1)}</td>
    </tr>
  );
}

export function Figure({
  value,
  unit,
  label,
  note,
}: {
  value: string;
  unit?: string;
  label: string;
  note?: string | undefined;
}) {
  return (
    <div class="figure">
      <div class="figure-label">{label}</div>
      <div class="figure-value">
        {value}
        {unit ? <span class="figure-unit"> {unit}</span> : null}
      </div>
      {note ? <div class="figure-note">{note}</div> : null}
    </div>
  );
}

function Strip({ answer }: { answer: Answer }) {
  const { coverage } = answer;
  const whole = coverage.hosts * coverage.window_ms;
  const samples = answer.rows.reduce((sum, row) => sum + row.samples, 0);
  const disk = meta.data.value?.data;
  const unit = rateUnit(answer.type, answer.unit) ?? 'threads';
  const total = (isCpu(answer.type) ? cores(answer.total_cores) : threads(answer.total_cores, unit)).split('\u00a0');
  return (
    <section class="strip" aria-label="Whole system">
      <Figure
        label="Whole system"
        value={total[0] ?? ''}
        unit={total[1] ?? ''}
        note={`over ${duration(answer.to - answer.from)}`}
      />
      <Figure label="Hosts reporting" value={count(coverage.hosts)} />
      <Figure
        label="Coverage"
        value={share(coverage.host_ms, whole)}
        note={whole > 0 ? `of ${coverage.hosts === 1 ? 'the range' : 'hosts × range'} was observed` : undefined}
      />
      <Figure label="Samples" value={countShort(samples)} />
      <Figure label="Services" value={count(answer.rows.length)} />
      {disk && disk.disk_bytes_max > 0 ? (
        <Figure label="Stored" value={bytes(disk.disk_bytes)} note={`of ${bytes(disk.disk_bytes_max)}`} />
      ) : null}
      <span class="spacer" />
      <Link to={exploreState(null)} class="button primary">
        Explore the whole system
      </Link>
    </section>
  );
}

export function Services() {
  const answer = services.data.value;
  const error = services.error.value;
  if (neverFed.value) return <FirstRun />;
  const shown = rows.value;
  const most = Math.max(0, ...(answer?.rows ?? []).map((row) => row.share));
  return (
    <main class={`services${services.loading.value ? ' loading' : ''}`}>
      <h1 class="spoken">Services</h1>
      {error ? <Problem error={error} stale={answer !== null} /> : null}
      {answer ? (
        <>
          <Warnings warnings={answer.warnings.map(visible)} />
          <Strip answer={answer} />
          <div class="services-tools">
            <FindField
              label="Filter services"
              placeholder="filter services  /"
              value={view.value.service}
              onFind={(service) => go({ service }, 'replace')}
            />
            <span class="muted" aria-live="polite">
              {shown.length === answer.rows.length
                ? `${count(shown.length)} services`
                : `${count(shown.length)} of ${count(answer.rows.length)} services`}
              {shown.length > ROWS_MAX ? `, the first ${ROWS_MAX} shown` : ''}
            </span>
          </div>
          {answer.rows.length === 0 ? (
            <NothingHere>
              <p>No profile in this range.</p>
              <button type="button" class="primary" onClick={() => go({ from: 'now-24h', to: 'now', q: '' })}>
                Look at the last 24 h
              </button>
            </NothingHere>
          ) : (
            <div class="services-table">
              <table>
                <thead>
                  <tr>
                    <SortHead column="service" sort={sort.value}>
                      Service
                    </SortHead>
                    <SortHead column="cores" sort={sort.value} class="col-cores" numeric>
                      {isCpu(answer.type) ? 'Cores' : 'Threads'}
                    </SortHead>
                    <th scope="col" class="col-share">
                      Share
                    </th>
                    <th scope="col" class="col-trend">
                      {isCpu(answer.type) ? 'Cores' : 'Threads'} over time
                    </th>
                    <SortHead column="samples" sort={sort.value} class="col-count" numeric>
                      Samples
                    </SortHead>
                    <SortHead column="hosts" sort={sort.value} class="col-count" numeric>
                      Hosts
                    </SortHead>
                    <SortHead column="containers" sort={sort.value} class="col-count" numeric>
                      Containers
                    </SortHead>
                    <SortHead column="named_share" sort={sort.value} class="col-count" numeric>
                      Named
                    </SortHead>
                  </tr>
                </thead>
                <tbody>
                  {shown.slice(0, ROWS_MAX).map((row) => (
                    <Row key={row.service} row={row} most={most} />
                  ))}
                </tbody>
              </table>
            </div>
          )}
        </>
      ) : null}
    </main>
  );
}
