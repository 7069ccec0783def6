// One flame graph canvas: its size and ratio, the glide of a zoom, the outlines above the picture, the hit test.
// What is drawn where is layout's and render's; what is shown is the page's state, read here.

import { flame, focus, hover, matches, pointed, zoomNode } from '../explore.ts';
import { shortName } from '../names.ts';
import { canvasTheme } from '../state.ts';
import { framesOfRect, hitRect, nodeOfRect } from './layout.ts';
import type { FlameModel } from './model.ts';
import { FlameRenderer, ROW_PX } from './render.ts';

/** Long enough to follow, short enough not to wait for. */
const ZOOM_MS = 180;
/** Ratio of device to CSS pixels that is kept on screens where a full one was slower than the budget. */
const RATIO_CAP = 1.5;
const FRAME_BUDGET_MS = 12;

const reducedMotion = matchMedia('(prefers-reduced-motion: reduce)');

export class FlameCanvas {
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
        else if (sameAsHovered !== -1 && model.func[node] === sameAsHovered && node !== 0)
          outline(i, row, theme.textMuted, ratio);
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
