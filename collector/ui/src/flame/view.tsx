// The flame graph on the page: canvas, pointer, keyboard, tooltip. What is drawn where is layout's and render's.

import { useSignal, useSignalEffect } from '@preact/signals';
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import { amount } from '../figures.ts';
import { flame, focus, hover, matches, pointed, zoomNode } from '../explore.ts';
import { count, share } from '../format.ts';
import { shortName } from '../names.ts';
import { canvasTheme, dark, go, holdRefresh, view } from '../state.ts';
import { NODES_DETAILED } from '../url.ts';
import { describe } from './describe.ts';
import { framesOfRect, hitRect, nodeOfRect } from './layout.ts';
import type { FlameModel } from './model.ts';
import { handleFlameKey, zoomTo } from './navigate.ts';
import { FlameRenderer, ROW_PX } from './render.ts';
import { Tooltip } from './tooltip.tsx';

/** Long enough to follow, short enough not to wait for. */
const ZOOM_MS = 180;
/** Backing stores above this ratio are halved in cost when a frame was slower than the budget. */
const RATIO_CAP = 1.5;
const FRAME_BUDGET_MS = 12;
/** The picture does not change under a pointer that moved so lately: someone reads there. */
const HOLD_MS = 30_000;
const TOOLTIP_AFTER_MS = 150;

const reducedMotion = matchMedia('(prefers-reduced-motion: reduce)');

/** Deepest level of the zoomed part. */
function depthBelow(model: FlameModel, node: number): number {
  let depth = 0;
  const end = model.end[node] ?? 0;
  for (let i = node; i < end; i += 1) depth = Math.max(depth, model.depth[i] as number);
  return depth + 1;
}

/** Everything about one canvas that is not the page's state. */
class FlameCanvas {
  readonly renderer: FlameRenderer;
  readonly #canvas: HTMLCanvasElement;
  readonly #overlay: HTMLCanvasElement;
  #model: FlameModel | null = null;
  #from = 0;
  #to = 0;
  #animation: { from: number; to: number; toFrom: number; toTo: number; start: number } | null = null;
  #frame = 0;
  #overlayOnly = true;
  #width = 0;
  #height = 0;
  #ratio = 1;
  #slow = false;
  /** The model whose first drawing the performance time line has. */
  #marked: FlameModel | null = null;
  scroll = 0;

  constructor(canvas: HTMLCanvasElement, overlay: HTMLCanvasElement) {
    this.#canvas = canvas;
    this.#overlay = overlay;
    this.renderer = new FlameRenderer(canvas, shortName);
  }

  stop(): void {
    cancelAnimationFrame(this.#frame);
  }

  resize(width: number, height: number): void {
    this.#width = width;
    this.#height = height;
    this.#fitRatio();
    // At once: an opaque canvas of a new size is black until it is drawn.
    this.#overlayOnly = false;
    cancelAnimationFrame(this.#frame);
    this.#draw(performance.now());
  }

  #fitRatio(): void {
    const device = globalThis.devicePixelRatio || 1;
    this.#ratio = this.#slow ? Math.min(device, RATIO_CAP) : device;
    for (const canvas of [this.#canvas, this.#overlay]) {
      canvas.width = Math.max(1, Math.round(this.#width * this.#ratio));
      canvas.height = Math.max(1, Math.round(this.#height * this.#ratio));
      canvas.style.width = `${this.#width}px`;
      canvas.style.height = `${this.#height}px`;
    }
  }

  /** Shows `node` of `model`; glides there when only the zoom changed. */
  show(model: FlameModel, node: number): void {
    const toFrom = model.left[node] ?? 0;
    const toTo = toFrom + (model.total_[node] ?? 0);
    const glide = this.#model === model && this.#to > this.#from && !reducedMotion.matches;
    this.#model = model;
    if (glide && (toFrom !== this.#from || toTo !== this.#to)) {
      this.#animation = { from: this.#from, to: this.#to, toFrom, toTo, start: 0 };
    } else {
      this.#animation = null;
      this.#from = toFrom;
      this.#to = toTo;
    }
    this.redraw();
  }

  redraw(): void {
    this.#overlayOnly = false;
    this.#schedule();
  }

  redrawOverlay(): void {
    this.#schedule();
  }

  #schedule(): void {
    if (this.#frame === 0) this.#frame = requestAnimationFrame((now) => this.#draw(now));
  }

  #draw(now: number): void {
    this.#frame = 0;
    const shown = flame.data.peek();
    if (!shown || shown.model !== this.#model || this.#width < 1) return;
    if (!this.#overlayOnly) {
      this.#step(now);
      const begun = performance.now();
      this.renderer.draw({
        model: shown.model,
        theme: canvasTheme.peek(),
        ratio: this.#ratio,
        height: this.#height,
        window: { from: this.#from, to: this.#to, width: this.#canvas.width },
        scroll: this.scroll,
        zoom: zoomNode.peek(),
        matches: matches.peek()?.functions ?? null,
      });
      const cost = performance.now() - begun;
      if (this.#marked !== shown.model) {
        this.#marked = shown.model;
        performance.mark('vesta:flame');
      }
      if (!this.#slow && this.#ratio > RATIO_CAP && cost > FRAME_BUDGET_MS) {
        this.#slow = true;
        this.#fitRatio();
        this.redraw();
        return;
      }
    }
    this.#overlayOnly = true;
    this.#drawOverlay(shown.model);
    if (this.#animation) this.redraw();
  }

  #step(now: number): void {
    const animation = this.#animation;
    if (!animation) return;
    if (animation.start === 0) animation.start = now;
    const part = Math.min(1, (now - animation.start) / ZOOM_MS);
    const eased = 1 - (1 - part) ** 3;
    this.#from = animation.from + (animation.toFrom - animation.from) * eased;
    this.#to = animation.to + (animation.toTo - animation.to) * eased;
    if (part >= 1) {
      this.#from = animation.toFrom;
      this.#to = animation.toTo;
      this.#animation = null;
    }
  }

  /** Outlines: the frame of the pointer, the frame of the keyboard, all frames of the function of the table. */
  #drawOverlay(model: FlameModel): void {
    const context = this.#overlay.getContext('2d');
    if (!context) return;
    const theme = canvasTheme.peek();
    context.clearRect(0, 0, this.#overlay.width, this.#overlay.height);
    const { list } = this.renderer;
    const hovered = hover.peek()?.node ?? -1;
    const focused = focus.peek();
    const f = pointed.peek();
    const sameAsHovered = hovered > 0 ? model.func[hovered] : -1;
    const ratio = this.#ratio;
    const outline = (rect: number, row: number, colour: string, width: number) => {
      context.strokeStyle = colour;
      context.lineWidth = width;
      const x = (list.x0[rect] as number) + width / 2;
      const y = Math.round((row * ROW_PX - this.scroll) * ratio) + width / 2;
      const w = Math.max(1, (list.x1[rect] as number) - (list.x0[rect] as number) - width - ratio);
      context.strokeRect(x, y, w, Math.round(ROW_PX * ratio) - ratio - width);
    };
    for (let r = 0; r + 1 < list.rowAt.length; r += 1) {
      const row = list.firstRow + r;
      for (let i = list.rowAt[r] as number; i < (list.rowAt[r + 1] as number); i += 1) {
        const node = list.node[i] as number;
        if (node < 0) continue;
        if (node === focused) outline(i, row, theme.focus, 2 * ratio);
        else if (node === hovered) outline(i, row, theme.outline, 1.5 * ratio);
        else if (f >= 0 && model.func[node] === f) outline(i, row, theme.outline, 1.5 * ratio);
        else if (sameAsHovered !== -1 && model.func[node] === sameAsHovered && node !== 0) outline(i, row, theme.textMuted, ratio);
      }
    }
  }

  /** The frame at a point of the canvas, CSS pixels. */
  hit(x: number, y: number): { node: number; frames: number } | null {
    const model = this.#model;
    if (!model) return null;
    const { list } = this.renderer;
    const row = Math.floor((y + this.scroll) / ROW_PX);
    const rect = hitRect(list, row, Math.floor(x * this.#ratio));
    return rect < 0 ? null : { node: nodeOfRect(model, list, rect), frames: framesOfRect(list, rect) };
  }
}

export function FlameGraph() {
  const scroller = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const overlay = useRef<HTMLCanvasElement>(null);
  const drawing = useRef<FlameCanvas | null>(null);
  const size = useSignal({ width: 0, height: 0 });
  const tooltip = useSignal(false);
  const lastRoot = useRef('');
  const tooltipTimer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);

  useLayoutEffect(() => {
    const box = scroller.current;
    if (!box || !canvas.current || !overlay.current) return;
    const made = new FlameCanvas(canvas.current, overlay.current);
    drawing.current = made;
    const fit = () => {
      const next = { width: box.clientWidth, height: box.clientHeight };
      if (next.width === size.peek().width && next.height === size.peek().height) return;
      size.value = next;
      made.resize(next.width, next.height);
    };
    const observer = new ResizeObserver(fit);
    observer.observe(box);
    fit();
    // Fonts may come after the first drawing, and another screen has another ratio.
    document.fonts?.ready.then(() => made.redraw());
    const ratio = matchMedia(`(resolution: ${globalThis.devicePixelRatio}dppx)`);
    const again = () => made.resize(box.clientWidth, box.clientHeight);
    ratio.addEventListener('change', again);
    return () => {
      observer.disconnect();
      ratio.removeEventListener('change', again);
      made.stop();
      drawing.current = null;
      clearTimeout(tooltipTimer.current);
      hover.value = null;
    };
  }, []);

  useSignalEffect(() => {
    const shown = flame.data.value;
    const node = zoomNode.value;
    if (!shown) return;
    drawing.current?.show(shown.model, node);
    const box = scroller.current;
    const { root } = view.peek();
    if (root === lastRoot.current) return;
    lastRoot.current = root;
    // The zoomed frame must be in sight, with a caller or two above it.
    const top = ((shown.model.depth[node] ?? 0) - 2) * ROW_PX;
    if (box && (top < box.scrollTop - ROW_PX * 2 || top > box.scrollTop + box.clientHeight / 2)) box.scrollTop = Math.max(0, top);
  });
  useSignalEffect(() => {
    matches.value;
    canvasTheme.value;
    drawing.current?.redraw();
  });
  useSignalEffect(() => {
    hover.value;
    pointed.value;
    const node = focus.value;
    const shown = flame.data.peek();
    const box = scroller.current;
    if (node >= 0 && shown && box) {
      const top = (shown.model.depth[node] ?? 0) * ROW_PX;
      if (top < box.scrollTop) box.scrollTop = top;
      if (top + ROW_PX > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW_PX - box.clientHeight;
    }
    drawing.current?.redrawOverlay();
  });

  useEffect(() => {
    const box = scroller.current;
    const onScroll = () => {
      if (!box || !drawing.current) return;
      drawing.current.scroll = box.scrollTop;
      drawing.current.redraw();
    };
    box?.addEventListener('scroll', onScroll, { passive: true });
    return () => box?.removeEventListener('scroll', onScroll);
  }, []);

  const shown = flame.data.value;
  const model = shown?.model ?? null;
  const depth = model ? depthBelow(model, zoomNode.value) : 0;
  const height = Math.max(depth * ROW_PX, 1);

  const at = (event: MouseEvent) => {
    const box = canvas.current?.getBoundingClientRect();
    return box ? { x: event.clientX - box.left, y: event.clientY - box.top } : { x: -1, y: -1 };
  };
  const onMove = (event: MouseEvent) => {
    const { x, y } = at(event);
    const hit = drawing.current?.hit(x, y) ?? null;
    holdRefresh(HOLD_MS);
    if (hit?.node !== hover.peek()?.node) {
      clearTimeout(tooltipTimer.current);
      if (!hit) tooltip.value = false;
      else if (!tooltip.peek()) {
        tooltipTimer.current = setTimeout(() => {
          tooltip.value = true;
        }, TOOLTIP_AFTER_MS);
      }
    }
    hover.value = hit && { ...hit, x: event.clientX, y: event.clientY };
  };
  const onLeave = () => {
    clearTimeout(tooltipTimer.current);
    tooltip.value = false;
    hover.value = null;
    holdRefresh(0);
  };
  const onClick = (event: MouseEvent) => {
    const { x, y } = at(event);
    const hit = drawing.current?.hit(x, y);
    if (!hit || !shown) return;
    if (shown.model.func[hit.node] === shown.model.hiddenFunc) go({ nodes: NODES_DETAILED });
    else {
      focus.value = -1;
      zoomTo(hit.node);
    }
  };

  const summary = model
    ? `Flame graph: ${amount(model.total, model, view.value.type)} in ${count(model.count)} frames, ${model.depths} levels deep. The table holds the same functions as text.`
    : 'Flame graph';
  return (
    <div class="flame" data-nodes={model?.count ?? 0} data-root={view.value.root} data-theme-dark={dark.value}>
      <div
        class="flame-scroll"
        ref={scroller}
        tabIndex={0}
        role="group"
        aria-label="Flame graph; arrow keys walk the frames, Enter zooms, 0 resets"
        onKeyDown={(event) => handleFlameKey(event)}
        onMouseMove={onMove}
        onMouseLeave={onLeave}
        onClick={onClick}
      >
        <div class="flame-space" style={{ height: `${height}px` }}>
          <div class="flame-stick" style={{ height: `${Math.max(1, size.value.height)}px` }}>
            <canvas ref={canvas} role="img" aria-label={summary} />
            <canvas ref={overlay} class="flame-overlay" aria-hidden="true" />
          </div>
        </div>
      </div>
      {tooltip.value && hover.value && shown ? <Tooltip model={shown.model} hover={hover.value} zoom={zoomNode.value} type={view.value.type} /> : null}
      <DetailStrip />
    </div>
  );
}

/** One fixed line about the frame that is pointed at, at once; screen readers hear the keyboard's frame. */
function DetailStrip() {
  const shown = flame.data.value;
  const zoom = zoomNode.value;
  const node = hover.value?.node ?? (focus.value >= 0 ? focus.value : zoom);
  const text = shown && shown.model.count > node ? describe(shown.model, node, zoom, view.value.type) : null;
  const spoken = shown && focus.value >= 0 ? describe(shown.model, focus.value, zoom, view.value.type).spoken : '';
  return (
    <div class="detail">
      {text && shown ? (
        <>
          <span class={`kind kind-${text.group}`} aria-hidden="true" />
          <span class="detail-name">{text.name}</span>
          {text.place ? <span class="detail-place">{text.place}</span> : null}
          <span class="detail-figures">
            <b>{text.total}</b> {text.ofTotal}
            {zoom > 0 && node > zoom ? <> · {share(shown.model.total_[node] as number, shown.model.total_[zoom] as number)} of view</> : null}
            <span class="muted"> · self </span>
            {text.self}
            {text.samples ? <span class="muted"> · {text.samples}</span> : null}
          </span>
        </>
      ) : null}
      <span class="spoken" aria-live="polite">
        {spoken}
      </span>
    </div>
  );
}
