// A link within the page: a real address for the middle button and for copying, a state change for a plain click.

import type { ComponentChildren } from 'preact';
import { go } from '../state.ts';
import { encode, type ViewState } from '../url.ts';

interface Props {
  readonly to: ViewState;
  readonly class?: string;
  readonly current?: boolean;
  readonly label?: string;
  readonly children: ComponentChildren;
}

export function Link({ to, class: name, current, label, children }: Props) {
  const onClick = (event: MouseEvent) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    event.stopPropagation();
    go(to);
  };
  return (
    <a href={encode(to)} class={name} aria-label={label} aria-current={current ? 'page' : undefined} onClick={onClick}>
      {children}
    </a>
  );
}
