// What the Explore page knows: its questions to the collector, the search, and what is pointed at.

import { computed, effect, signal } from '@preact/signals';
import type { FlameAnswer, Functions, Labels, Meta, Series } from './api.ts';
import { buildModel, type FlameModel, functionTotals, PathHashes } from './flame/model.ts';
import { RegexWorker } from './regex.ts';
import { resource } from './resource.ts';
import { collectMatches, matchText } from './search.ts';
import { clockSkew } from './time.ts';
import { filterError, filterParam, matchers, tick, view } from './state.ts';
import { REASON_LABEL } from './palette.ts';
import { hasReasons, typeOf } from './url.ts';

/** Rows of the top table that the collector is asked for: more than anyone reads, few enough to send at once. */
const FUNCTIONS_MAX = 2000;
/** Series of the time line; the rest is added up as “other”. */
export const SERIES_MAX = 8;

const onExplore = computed(() => view.value.page === 'explore' && filterError.value === '');
const selection = computed(() => ({ type: view.value.type, filter: filterParam.value }));
const fullRange = computed(() => ({ from: view.value.from, to: view.value.to }));
const brushed = computed(() => {
  const { sel } = view.value;
  return sel ? { from: sel[0], to: sel[1] } : fullRange.value;
});

export const meta = resource<Meta>(
  () => ({ path: '/meta', params: {}, turn: tick.value }),
  (answer) => {
    clockSkew.value = answer.now - Date.now();
    return answer;
  },
);

/** True while the collector has never seen a profile. */
export const neverFed = computed(() => meta.data.value?.profile_types.length === 0);

/** The label that splits the time line: the page's choice is by why threads waited where that is known, else by service,
 * and by executable within one. */
export const splitBy = computed(() => {
  const chosen = view.value.by;
  if (chosen !== 'auto') return chosen;
  if (hasReasons(view.value.type)) return REASON_LABEL;
  return matchers.value.some((m) => m.name === 'service' && m.op === '=') ? 'executable' : 'service';
});

export const series = resource<Series>(
  () =>
    onExplore.value
      ? {
          path: '/series',
          params: { ...selection.value, ...fullRange.value, by: splitBy.value, limit: SERIES_MAX },
          turn: tick.value,
        }
      : null,
  (answer) => answer,
);

export const labels = resource<Labels>(
  () =>
    onExplore.value || view.value.page === 'locks'
      ? { path: '/labels', params: { type: typeOf(view.value), ...fullRange.value }, turn: tick.value }
      : null,
  (answer) => answer,
);

export interface Flame {
  readonly model: FlameModel;
  readonly hashes: PathHashes;
}

export const flame = resource<FlameAnswer, Flame>(
  () =>
    onExplore.value
      ? {
          path: '/flamegraph',
          params: {
            ...selection.value,
            ...brushed.value,
            max_nodes: view.value.nodes,
            leaf: hasReasons(view.value.type) ? REASON_LABEL : undefined,
          },
          turn: tick.value,
        }
      : null,
  (answer) => {
    const model = buildModel(answer);
    return { model, hashes: new PathHashes(model) };
  },
);

const wantsTable = computed(() => onExplore.value && view.value.view !== 'flame');
export const functions = resource<Functions>(
  () =>
    wantsTable.value
      ? { path: '/functions', params: { ...selection.value, ...brushed.value, limit: FUNCTIONS_MAX }, turn: tick.value }
      : null,
  (answer) => answer,
);

const rootHash = computed(() => view.value.root);
/** The frame that fills the width; 0 (all) where the tree has no such path. */
export const zoomNode = computed(() => {
  const shown = flame.data.value;
  if (!shown || rootHash.value === '') return 0;
  return Math.max(0, shown.hashes.find(rootHash.value));
});
/** True where the URL names a frame that this tree does not hold. */
export const zoomLost = computed(() => flame.data.value !== null && rootHash.value !== '' && zoomNode.value === 0);

// Search.
const regexWorker = new RegexWorker();
/** By function of the shown model; null without a search. */
const found = signal<{ model: FlameModel; mask: Uint8Array } | null>(null);
export const searchError = signal('');
export const searching = signal(false);
const wanted = computed(() => ({ text: view.value.find.trim(), regex: view.value.regex }));

effect(() => {
  const shown = flame.data.value;
  const { text, regex } = wanted.value;
  let stale = false;
  if (!shown || text === '') {
    found.value = null;
    searchError.value = '';
    searching.value = false;
    return;
  }
  const { model } = shown;
  const { name } = model.functions;
  if (!regex) {
    found.value = { model, mask: matchText(name, text) };
    searchError.value = '';
    return;
  }
  searching.value = true;
  regexWorker.match(name, text).then(
    (mask) => {
      if (stale) return;
      found.value = { model, mask };
      searchError.value = '';
      searching.value = false;
    },
    (error: unknown) => {
      if (stale) return;
      found.value = null;
      searchError.value = error instanceof Error ? error.message : String(error);
      searching.value = false;
    },
  );
  return () => {
    stale = true;
  };
});

export const matches = computed(() => {
  const shown = flame.data.value;
  const now = found.value;
  if (!shown || now?.model !== shown.model) return null;
  return collectMatches(shown.model, now.mask, zoomNode.value);
});

/** Self and total by function below the zoomed frame. */
export const viewTotals = computed(() => {
  const shown = flame.data.value;
  return shown ? functionTotals(shown.model, zoomNode.value) : null;
});

/** Rows of the zoomed frame's subtree, its callers included. */
export const depthsInView = computed(() => {
  const model = flame.data.value?.model;
  if (!model) return 0;
  let deepest = -1;
  const end = model.end[zoomNode.value] ?? 0;
  for (let i = zoomNode.value; i < end; i += 1) deepest = Math.max(deepest, model.depth[i] as number);
  return deepest + 1;
});

// Pointing.
export interface Hover {
  readonly node: number;
  /** Frames in the rectangle under the pointer: more than one where they are narrower than a pixel. */
  readonly frames: number;
  readonly x: number;
  readonly y: number;
}

/** The frame under the pointer. */
export const hover = signal<Hover | null>(null);
/** The same without where: changes from frame to frame, not from pixel to pixel. */
export const hoveredNode = computed(() => hover.value?.node ?? -1);
/** The frame of the keyboard; -1 for none. */
export const focus = signal(-1);
/** Function pointed at in the table, by index of the shown model; -1 for none. */
export const pointed = signal(-1);

// An index means nothing in another tree: the keyboard's frame is found again by its path, the rest is let go.
let last: Flame | null = null;
effect(() => {
  const shown = flame.data.value;
  if (shown === last) return;
  const focused = focus.peek();
  focus.value = last && shown && focused >= 0 ? shown.hashes.find(last.hashes.of(focused)) : -1;
  last = shown;
  hover.value = null;
  pointed.value = -1;
});
