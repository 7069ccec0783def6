// Which rectangles a row of the flame graph shows: O(pixels), not O(nodes). No DOM.
//
// Frames of a pixel and more become one rectangle each, snapped to whole device pixels. Runs of narrower ones are
// walked a pixel at a time by galloping (every frame that ends inside the pixel is skipped at once, so what is
// skipped is narrower than a pixel by construction) and shown as one rectangle. The same list is drawn and hit.

import type { FlameModel } from './model.ts';

/** What the width shows: values from `from` to `to` over `width` device pixels. */
export interface Window {
  readonly from: number;
  readonly to: number;
  readonly width: number;
}

/** Rectangles of the rows of a view. `node` is the frame, or -1 - (index in rowNodes of a run's first frame). */
export class DisplayList {
  node = new Int32Array(4096);
  x0 = new Int32Array(4096);
  x1 = new Int32Array(4096);
  /** For runs: index in rowNodes behind the last frame. */
  runEnd = new Uint32Array(4096);
  count = 0;
  firstRow = 0;
  /** Rectangles of row r: from rowAt[r - firstRow] to rowAt[r - firstRow + 1]. */
  rowAt: number[] = [0];

  clear(firstRow: number): void {
    this.count = 0;
    this.firstRow = firstRow;
    this.rowAt.length = 1;
    this.rowAt[0] = 0;
  }

  push(node: number, x0: number, x1: number, runEnd: number): void {
    if (this.count === this.node.length) this.#grow();
    this.node[this.count] = node;
    this.x0[this.count] = x0;
    this.x1[this.count] = x1;
    this.runEnd[this.count] = runEnd;
    this.count += 1;
  }

  endRow(): void {
    this.rowAt.push(this.count);
  }

  #grow(): void {
    const size = this.node.length * 2;
    const wider = <T extends Int32Array | Uint32Array>(next: T, old: T): T => {
      next.set(old);
      return next;
    };
    this.node = wider(new Int32Array(size), this.node);
    this.x0 = wider(new Int32Array(size), this.x0);
    this.x1 = wider(new Int32Array(size), this.x1);
    this.runEnd = wider(new Uint32Array(size), this.runEnd);
  }
}

/** The first index in [low, high) of rowNodes whose frame ends right of `value`; `high` if none does. */
function firstEndingBehind(model: FlameModel, low: number, high: number, value: number): number {
  let a = low;
  let b = high;
  while (a < b) {
    const middle = (a + b) >>> 1;
    const node = model.rowNodes[middle] as number;
    if ((model.left[node] as number) + (model.total_[node] as number) > value) b = middle;
    else a = middle + 1;
  }
  return a;
}

/** As firstEndingBehind, quick where the answer is near `low`: doubles its step, then searches the last one. */
function gallop(model: FlameModel, low: number, high: number, value: number): number {
  let step = 1;
  let from = low;
  while (from + step < high) {
    const node = model.rowNodes[from + step] as number;
    if ((model.left[node] as number) + (model.total_[node] as number) > value) break;
    from += step;
    step *= 2;
  }
  return firstEndingBehind(model, from, Math.min(high, from + step + 1), value);
}

/** Appends the rectangles of row `depth` to `list`. Returns how many frames were looked at one by one. */
export function layoutRow(model: FlameModel, depth: number, view: Window, list: DisplayList): number {
  const high = model.rowStart[depth + 1] as number;
  const scale = view.width / (view.to - view.from);
  let looked = 0;
  // No rectangle may begin left of here: rectangles of a row never overlap.
  let free = 0;
  // Index in the list of a run that may still grow, -1 if none.
  let run = -1;
  let at = firstEndingBehind(model, model.rowStart[depth] as number, high, view.from);
  while (at < high) {
    const node = model.rowNodes[at] as number;
    const width = model.total_[node] as number;
    const left = ((model.left[node] as number) - view.from) * scale;
    if (left >= view.width) break;
    looked += 1;
    const right = left + width * scale;
    if (width * scale >= 1) {
      // A run may have taken the pixel this begins in; a frame of 1.5 pixels and more still keeps one of its own.
      const x0 = Math.max(free, Math.round(left));
      const x1 = Math.min(view.width, Math.round(right));
      at += 1;
      if (x1 <= x0) continue;
      list.push(node, x0, x1, 0);
      free = x1;
      run = -1;
      continue;
    }
    const pixel = Math.max(0, Math.floor(left));
    // At least one frame on, else a frame that crosses the pixel's edge would stand still.
    const next = Math.max(at + 1, gallop(model, at, high, view.from + (pixel + 1) / scale));
    const last = model.rowNodes[next - 1] as number;
    const lastRight = ((model.left[last] as number) + (model.total_[last] as number) - view.from) * scale;
    const x1 = Math.min(view.width, Math.max(pixel + 1, Math.round(lastRight)));
    if (run >= 0 && (list.x1[run] as number) >= pixel) {
      list.x1[run] = Math.max(list.x1[run] as number, x1);
      list.runEnd[run] = next;
      free = list.x1[run] as number;
    } else if (x1 > free) {
      run = list.count;
      list.push(-1 - at, Math.max(free, pixel), x1, next);
      free = x1;
    }
    at = next;
  }
  list.endRow();
  return looked;
}

/** Lays out rows [firstRow, lastRow). */
export function layoutRows(
  model: FlameModel,
  view: Window,
  firstRow: number,
  lastRow: number,
  list: DisplayList,
): void {
  const from = Math.max(0, firstRow);
  list.clear(from);
  if (!(view.to > view.from) || view.width < 1) {
    for (let d = from; d < Math.min(lastRow, model.depths); d += 1) list.endRow();
    return;
  }
  for (let d = from; d < Math.min(lastRow, model.depths); d += 1) layoutRow(model, d, view, list);
}

/** Frames of a run that are compared to find its heaviest; a run is a few pixels, a frame of it is a detail. */
const RUN_LOOK_MAX = 4096;

/** Index in the list of the rectangle at device pixel `x` of row `depth`; -1 where there is none. */
export function hitRect(list: DisplayList, depth: number, x: number): number {
  const row = depth - list.firstRow;
  if (row < 0 || row + 1 >= list.rowAt.length) return -1;
  let a = list.rowAt[row] as number;
  const end = list.rowAt[row + 1] as number;
  let b = end;
  while (a < b) {
    const middle = (a + b) >>> 1;
    if ((list.x1[middle] as number) > x) b = middle;
    else a = middle + 1;
  }
  return a < end && (list.x0[a] as number) <= x ? a : -1;
}

/** The frame of a rectangle; of a run its heaviest one. */
export function nodeOfRect(model: FlameModel, list: DisplayList, rect: number): number {
  const node = list.node[rect] as number;
  if (node >= 0) return node;
  const start = -1 - node;
  const end = Math.min(list.runEnd[rect] as number, start + RUN_LOOK_MAX);
  let best = model.rowNodes[start] as number;
  for (let i = start + 1; i < end; i += 1) {
    const other = model.rowNodes[i] as number;
    if ((model.total_[other] as number) > (model.total_[best] as number)) best = other;
  }
  return best;
}

/** Frames in a rectangle: 1, or how many a run holds. */
export function framesOfRect(list: DisplayList, rect: number): number {
  const node = list.node[rect] as number;
  return node >= 0 ? 1 : (list.runEnd[rect] as number) - (-1 - node);
}
