// One fixed line about the frame that is pointed at, at once; screen readers hear the keyboard's frame.

import { flame, focus, hoveredNode, zoomNode } from '../explore.ts';
import { share } from '../format.ts';
import { view } from '../state.ts';
import { describe } from './describe.ts';

export function DetailStrip() {
  const shown = flame.data.value;
  const zoom = zoomNode.value;
  const node = hoveredNode.value >= 0 ? hoveredNode.value : focus.value >= 0 ? focus.value : zoom;
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
            {zoom > 0 && node > zoom ? (
              <> · {share(shown.model.total_[node] as number, shown.model.total_[zoom] as number)} of view</>
            ) : null}
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
