// The flame graph on the page: the canvas in its scroll box, pointer and keyboard.

import { useSignal, useSignalEffect } from '@preact/signals';
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import { depthsInView, flame, focus, hover, hoveredNode, matches, pointed, zoomNode } from '../explore.ts';
import { amount } from '../figures.ts';
import { count } from '../format.ts';
import { canvasTheme, go, holdRefresh, view } from '../state.ts';
import { NODES_DETAILED } from '../url.ts';
import { FlameCanvas } from './canvas.ts';
import { DetailStrip } from './detail.tsx';
import { handleFlameKey, zoomTo } from './navigate.ts';
import { ROW_PX } from './render.ts';
import { Tooltip } from './tooltip.tsx';

/** The picture does not change under a pointer that moved so lately: someone reads there. */
const HOLD_MS = 30_000;
const TOOLTIP_AFTER_MS = 150;

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
    if (box && (top < box.scrollTop - ROW_PX * 2 || top > box.scrollTop + box.clientHeight / 2))
      box.scrollTop = Math.max(0, top);
  });
  useSignalEffect(() => {
    matches.value;
    canvasTheme.value;
    drawing.current?.redraw();
  });
  useSignalEffect(() => {
    hoveredNode.value;
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
  const height = Math.max(depthsInView.value * ROW_PX, 1);

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
    <div class="flame" data-nodes={model?.count ?? 0} data-root={view.value.root}>
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
      {tooltip.value ? <Tooltip /> : null}
      <DetailStrip />
    </div>
  );
}
