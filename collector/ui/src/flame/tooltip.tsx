// The box beside the pointer: the full name and every figure of a frame.

import { useLayoutEffect, useRef } from 'preact/hooks';
import { flame, hover as hovered, zoomNode } from '../explore.ts';
import { count, share } from '../format.ts';
import { LOW_SAMPLES } from '../figures.ts';
import { view } from '../state.ts';
import { describe } from './describe.ts';

const GAP_PX = 14;

export function Tooltip() {
  const box = useRef<HTMLDivElement>(null);
  const hover = hovered.value;
  const model = flame.data.value?.model;
  const zoom = zoomNode.value;
  useLayoutEffect(() => {
    const element = box.current;
    if (!element || !hover) return;
    const { offsetWidth: width, offsetHeight: height } = element;
    const right = hover.x + GAP_PX + width <= innerWidth ? hover.x + GAP_PX : Math.max(4, hover.x - GAP_PX - width);
    const below = hover.y + GAP_PX + height <= innerHeight ? hover.y + GAP_PX : Math.max(4, hover.y - GAP_PX - height);
    element.style.transform = `translate(${right}px, ${below}px)`;
  });
  if (!hover || !model) return null;
  const text = describe(model, hover.node, zoom, view.value.type);
  const total = model.total_[hover.node] as number;
  return (
    <div class="tooltip" ref={box} aria-hidden="true">
      {hover.frames > 1 ? (
        <div class="tooltip-run">{count(hover.frames)} frames, each narrower than a pixel here; the heaviest:</div>
      ) : null}
      <div class="tooltip-name">{text.name}</div>
      <div class="tooltip-kind">
        <span class={`kind kind-${text.group}`} /> {text.kind}
        {text.inlined ? ' · inlined' : ''}
        {text.module ? ` · ${text.module}` : ''}
      </div>
      {text.source ? <div class="tooltip-source">{text.source}</div> : null}
      <dl>
        <dt>Total</dt>
        <dd>{text.total}</dd>
        <dd>{share(total, model.total)}</dd>
        <dt>Self</dt>
        <dd>{text.self}</dd>
        <dd>{share(model.self[hover.node] as number, model.total)}</dd>
      </dl>
      <div class="tooltip-more">
        {zoom > 0 && hover.node >= zoom ? <div>{share(total, model.total_[zoom] as number)} of view</div> : null}
        {text.ofParent ? <div>{text.ofParent}</div> : null}
        {text.samples ? (
          <div>
            {text.samples}
            {text.low ? `: fewer than ${LOW_SAMPLES}, so these figures are rough` : ''}
          </div>
        ) : null}
      </div>
      <div class="tooltip-hint">{text.hidden ? 'click to ask for more frames' : 'click to zoom'}</div>
    </div>
  );
}
