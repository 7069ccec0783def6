// What is missing from the graph: a quiet share, and the reasons on demand.

import type { Losses as Answer } from '../api.ts';
import { lossesText } from '../figures.ts';
import { count, share } from '../format.ts';
import { visible } from '../names.ts';

export function Losses({ losses, total }: { losses: Answer; total: number }) {
  const text = lossesText(losses, total);
  if (!text) return null;
  const { cut, lost, sent } = losses;
  const owed = lost.reduce((sum, one) => sum + one.samples, sent);
  return (
    <details class="losses">
      <summary title="Stacks that end before their root, and samples that agents lost. Never scaled in.">
        {text}
      </summary>
      <div class="popover">
        {cut.length > 0 ? (
          <dl>
            <dt>Cut: the stack ends before its root</dt>
            {cut.map(({ reason, total: part }) => (
              <dd key={reason}>
                <span>{visible(reason)}</span> <b>{share(part, total)}</b>
              </dd>
            ))}
          </dl>
        ) : null}
        {lost.length > 0 ? (
          <dl>
            <dt>Lost on these hosts, of any service</dt>
            {lost.map(({ reason, samples }) => (
              <dd key={reason}>
                <span>{visible(reason)}</span>{' '}
                <b title={`${count(samples)} of ${count(owed)} samples`}>{share(samples, owed)}</b>
              </dd>
            ))}
          </dl>
        ) : null}
      </div>
    </details>
  );
}
