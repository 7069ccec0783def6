// Why threads waited: the colours of the innermost frames, their shares, and a click for one of them alone.

import { computed } from '@preact/signals';
import { flame, viewTotals, zoomNode } from '../explore.ts';
import { share } from '../format.ts';
import { isReason, REASON_LABEL, reasonGroup, reasonName } from '../palette.ts';
import { withMatcher } from '../selector.ts';
import { matchers, setMatchers } from '../state.ts';

/** Shown at once: the known ones fit. */
const REASONS_MAX = 12;

/** Reasons of the frames in view, the longest wait first. */
const reasons = computed(() => {
  const model = flame.data.value?.model;
  const totals = viewTotals.value;
  if (!model || !totals) return [];
  const { name, kind, module } = model.functions;
  return name
    .map((reason, f) => ({ reason, f }))
    .filter(({ f }) => isReason(kind[f] as string, module[f] as string) && (totals.total[f] as number) > 0)
    .map(({ reason, f }) => ({ reason, total: totals.total[f] as number }))
    .toSorted((a, b) => b.total - a.total || a.reason.localeCompare(b.reason));
});

export function Reasons() {
  const shown = reasons.value;
  const model = flame.data.value?.model;
  if (shown.length === 0 || !model) return null;
  const whole = model.total_[zoomNode.value] ?? 0;
  const known = `no ${REASON_LABEL}`;
  const chosen = matchers.value.find((m) => m.name === REASON_LABEL && m.op === '=')?.value;
  return (
    <div class="reasons" role="group" aria-label="Why threads waited">
      {shown.slice(0, REASONS_MAX).map(({ reason, total }) => {
        const value = reason === known ? '' : reason;
        const active = chosen === value;
        return (
          <button
            key={reason}
            type="button"
            aria-pressed={active}
            title={active ? 'Show every reason again' : `Only ${reasonName(reason)}`}
            onClick={() => {
              const others = matchers.peek().filter((m) => m.name !== REASON_LABEL);
              setMatchers(active ? others : withMatcher(others, { name: REASON_LABEL, op: '=', value }));
            }}
          >
            <span class={`kind kind-${reasonGroup(reason)}`} aria-hidden="true" /> {reason}{' '}
            <span class="muted">{share(total, whole)}</span>
          </button>
        );
      })}
    </div>
  );
}
