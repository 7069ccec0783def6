// Ways through the flame graph: zoom, back out, walk with the arrow keys, go from match to match.

import { flame, focus, hoveredNode, matches, zoomNode } from '../explore.ts';
import { go, view } from '../state.ts';
import { childrenOf, type FlameModel } from './model.ts';

/** Lets `node` fill the width; node 0 shows all. */
export function zoomTo(node: number): void {
  const shown = flame.data.peek();
  if (!shown) return;
  const root = node <= 0 ? '' : shown.hashes.of(node);
  if (root !== view.peek().root) go({ root });
}

function heaviest(model: FlameModel, nodes: readonly number[]): number {
  let best = -1;
  for (const node of nodes) {
    if (model.func[node] === model.hiddenFunc) continue;
    if (best < 0 || (model.total_[node] as number) > (model.total_[best] as number)) best = node;
  }
  return best;
}

function sibling(model: FlameModel, node: number, step: 1 | -1): number {
  const parent = model.parent[node] as number;
  if (parent < 0) return node;
  const siblings = childrenOf(model, parent);
  return siblings[siblings.indexOf(node) + step] ?? node;
}

function walk(model: FlameModel, node: number, key: string): number {
  switch (key) {
    case 'ArrowUp':
      return Math.max(0, model.parent[node] as number);
    case 'ArrowDown': {
      const child = heaviest(model, childrenOf(model, node));
      return child < 0 ? node : child;
    }
    case 'ArrowLeft':
      return sibling(model, node, -1);
    case 'ArrowRight':
      return sibling(model, node, 1);
    default:
      return node;
  }
}

/** Keys that belong to the flame graph while it has the focus. */
export function handleFlameKey(event: KeyboardEvent): void {
  const shown = flame.data.peek();
  if (!shown || event.ctrlKey || event.metaKey || event.altKey) return;
  const { model } = shown;
  if (event.key.startsWith('Arrow')) {
    focus.value = focus.peek() < 0 ? zoomNode.peek() : walk(model, focus.peek(), event.key);
    event.preventDefault();
  } else if (event.key === 'Enter' && focus.peek() >= 0) {
    zoomTo(focus.peek());
    event.preventDefault();
  }
}

/** Moves the focus to the next or previous match. */
export function goToMatch(step: 1 | -1): void {
  const found = matches.peek()?.outermost ?? [];
  if (found.length === 0) return;
  const now = found.indexOf(focus.peek());
  const next = now < 0 ? (step === 1 ? 0 : found.length - 1) : (now + step + found.length) % found.length;
  focus.value = found[next] as number;
  document.querySelector<HTMLElement>('.flame-scroll')?.focus();
}

/** Puts the full name of the frame that is pointed at, or chosen, or zoomed on the clipboard. */
export function copyName(): void {
  const model = flame.data.peek()?.model;
  if (!model) return;
  const node = [hoveredNode.peek(), focus.peek(), zoomNode.peek()].find((one) => one >= 0) ?? 0;
  navigator.clipboard?.writeText(model.functions.name[model.func[node] as number] ?? '');
}

/** One step back: the search, then the zoom, then the brushed part. True if there was a step. */
export function stepBack(): boolean {
  const now = view.peek();
  if (focus.peek() >= 0) focus.value = -1;
  if (now.find !== '') go({ find: '', regex: false });
  else if (now.root !== '') go({ root: '' });
  else if (now.sel) go({ sel: null });
  else return false;
  return true;
}
