// Explore: query, time line, flame graph and top table of one selection.

import { batch, useSignalEffect } from '@preact/signals';
import { flame, functions, matches, meta, neverFed, series, zoomLost, zoomNode } from '../explore.ts';
import { amount, isCpu, isWait, rateUnit } from '../figures.ts';
import { FlameGraph } from '../flame/view.tsx';
import { pathOf } from '../flame/model.ts';
import { zoomTo } from '../flame/navigate.ts';
import { count, countShort, cpuTime, duration, share } from '../format.ts';
import { shortName, visible } from '../names.ts';
import { filterError, go, matchers, refreshNow, view } from '../state.ts';
import { NODES_DETAILED, VIEWS, type View } from '../url.ts';
import { FirstRun, NothingHere } from '../widgets/empty.tsx';
import { QueryBar } from '../widgets/filter.tsx';
import { Losses } from '../widgets/losses.tsx';
import { Reasons } from '../widgets/reasons.tsx';
import { Problem, Warnings } from '../widgets/notice.tsx';
import { Search } from '../widgets/search.tsx';
import { TopTable } from '../widgets/table.tsx';
import { Timeline } from '../widgets/timeline.tsx';

const VIEW_NAMES: Record<View, string> = { both: 'Both', flame: 'Flame graph', table: 'Table' };

const AVERAGE: Record<string, string> = {
  'waiting threads': 'Average waiting threads: time that threads waited / time that their hosts reported',
  threads: 'Average threads: time of threads / time that their hosts reported',
};

function Status() {
  const model = flame.data.value?.model;
  const { type, nodes } = view.value;
  if (!model) return <p class="status muted">asking…</p>;
  const hz = model.periodNs > 0 ? ` @ ${Number((1e9 / model.periodNs).toPrecision(3))}\u00a0Hz` : '';
  return (
    <div class="status" aria-live="off">
      <b title={isCpu(type) ? undefined : AVERAGE[rateUnit(type, model.unit) ?? '']}>
        {amount(model.total, model, type)}
      </b>
      {isCpu(type) ? <span>{cpuTime(model.total)}</span> : null}
      {!isCpu(type) && rateUnit(type, model.unit) ? (
        <span>
          {duration(model.total / 1e6)} {isWait(type) ? 'of waiting' : 'of threads'}
        </span>
      ) : null}
      <span>
        {countShort(model.samples)} samples{hz}
      </span>
      <span>
        {count(model.hosts)} {model.hosts === 1 ? 'host' : 'hosts'}
      </span>
      {model.hostMs < model.hosts * model.windowMs * 0.995 ? (
        <span title="Share of the range that its hosts reported">
          {share(model.hostMs, model.hosts * model.windowMs)} observed
        </span>
      ) : null}
      {model.hidden.nodes > 0 ? (
        <span title={`${count(model.hidden.nodes)} frames too small for this answer`}>
          {share(model.hidden.total, model.total)} hidden{' '}
          {nodes < NODES_DETAILED ? (
            <button type="button" class="link" onClick={() => go({ nodes: NODES_DETAILED })}>
              (show)
            </button>
          ) : null}
        </span>
      ) : null}
      <Losses losses={model.losses} total={model.total} />
    </div>
  );
}

/** Where the zoom is: callers as steps back out. */
function Path() {
  const shown = flame.data.value;
  const node = zoomNode.value;
  if (zoomLost.value) {
    return (
      <p class="path">
        <span class="muted">the zoomed frame is not in this selection, all frames are shown</span>{' '}
        <button type="button" class="link" onClick={() => go({ root: '' }, 'replace')}>
          forget it
        </button>
      </p>
    );
  }
  if (!shown || node === 0) return null;
  const path = pathOf(shown.model, node);
  const { name, kind } = shown.model.functions;
  const last = path.slice(-4);
  return (
    <nav class="path" aria-label="Zoomed to">
      <button type="button" onClick={() => zoomTo(0)}>
        total
      </button>
      {path.length > 5 ? <span class="muted">› … {path.length - 5} more</span> : null}
      {last
        .filter((step) => step !== 0)
        .map((step) => {
          const f = shown.model.func[step] as number;
          return (
            <>
              <span class="muted">›</span>
              <button
                type="button"
                title={name[f]}
                aria-current={step === node ? 'location' : undefined}
                onClick={() => zoomTo(step)}
              >
                {shortName(name[f] as string, kind[f] as string)}
              </button>
            </>
          );
        })}
    </nav>
  );
}

function ViewSwitch() {
  return (
    <div class="segments" role="group" aria-label="View">
      {VIEWS.map((one) => (
        <button key={one} type="button" aria-pressed={view.value.view === one} onClick={() => go({ view: one })}>
          {VIEW_NAMES[one]}
        </button>
      ))}
    </div>
  );
}

function Nothing() {
  const filtered = matchers.value.length > 0;
  return (
    <NothingHere>
      <p>{filtered ? 'No sample of this range matches the filter.' : 'No profile in this range.'}</p>
      <p class="nothing-actions">
        {view.value.sel ? (
          <button type="button" class="primary" onClick={() => go({ sel: null })}>
            Show the whole range
          </button>
        ) : null}
        {filtered ? (
          <button type="button" class="primary" onClick={() => go({ q: '' })}>
            Clear the filter
          </button>
        ) : null}
        <button type="button" onClick={() => go({ from: 'now-24h', to: 'now', sel: null })}>
          Look at the last 24 h
        </button>
        <button type="button" onClick={refreshNow}>
          Ask again
        </button>
      </p>
    </NothingHere>
  );
}

export function Explore() {
  useSignalEffect(() => {
    // A chosen type that does not exist shows nothing and explains nothing: take the one there is.
    const types = meta.data.value?.profile_types ?? [];
    const { type } = view.value;
    if (types.length > 0 && type === 'cpu' && !types.some((t) => t.id === type))
      batch(() => go({ type: types[0]?.id ?? type }, 'replace'));
  });
  if (neverFed.value) return <FirstRun />;
  // QueryBar says what is wrong with the filter and offers to clear it.
  if (filterError.value)
    return (
      <main class="explore">
        <QueryBar />
      </main>
    );
  const error = flame.error.value ?? series.error.value ?? functions.error.value;
  const model = flame.data.value?.model;
  const empty = model !== undefined && model.total === 0 && model.samples === 0;
  const { view: shown } = view.value;
  const loading = flame.loading.value || functions.loading.value;
  return (
    <main class={`explore view-${shown}${loading ? ' loading' : ''}${matches.value ? ' searching' : ''}`}>
      <h1 class="spoken">Explore</h1>
      <QueryBar />
      <Timeline />
      {error ? <Problem error={error} stale={model !== undefined} /> : null}
      <Warnings
        warnings={[
          ...(model?.warnings ?? []),
          ...(series.data.value?.warnings ?? []).map(visible),
          ...(functions.data.value?.warnings ?? []).map(visible),
        ]}
      />
      <div class="tools">
        <Status />
        <span class="spacer" />
        <Search />
        <ViewSwitch />
      </div>
      <Reasons />
      <Path />
      {empty ? (
        <Nothing />
      ) : (
        <div class="panes">
          {shown !== 'flame' ? <TopTable /> : null}
          {shown !== 'table' ? <FlameGraph /> : null}
        </div>
      )}
    </main>
  );
}
