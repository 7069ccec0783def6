// The search field of the Explore page, and how much of the picture it finds.

import { flame, matches, searchError, zoomNode } from '../explore.ts';
import { goToMatch } from '../flame/navigate.ts';
import { count, share } from '../format.ts';
import { go, view } from '../state.ts';
import { Icon } from './icon.tsx';

/** Hidden frames are not searched: what is found of the rest is the least that there is. */
function atLeast(text: string, hidden: number): string {
  return hidden > 0 && /^[0-9]/.test(text) && !text.startsWith('100') ? `≥${text}` : text;
}

export function Search() {
  const { find, regex } = view.value;
  const found = matches.value;
  const model = flame.data.value?.model;
  const zoomed = zoomNode.value > 0;
  return (
    <div class="search" role="search">
      <div class={`search-field${searchError.value ? ' invalid' : ''}`}>
        <Icon name="search" />
        <input
          data-search
          type="search"
          aria-label="Search functions"
          placeholder="search functions  /"
          spellcheck={false}
          autocomplete="off"
          value={find}
          onInput={(event) => go({ find: event.currentTarget.value }, 'replace')}
          onKeyDown={(event) => {
            if (event.key === 'Escape') {
              go({ find: '', regex: false }, 'replace');
              event.currentTarget.blur();
              event.preventDefault();
            } else if (event.key === 'Enter') {
              goToMatch(event.shiftKey ? -1 : 1);
              event.currentTarget.focus();
              event.preventDefault();
            }
          }}
        />
        <button
          type="button"
          class="regex"
          aria-pressed={regex}
          title="Regular expression"
          aria-label="Regular expression"
          onClick={() => go({ regex: !regex }, 'replace')}
        >
          .*
        </button>
      </div>
      <span class="search-result" aria-live="polite">
        {searchError.value ? (
          <span class="problem">{searchError.value}</span>
        ) : found && model ? (
          <>
            <b title={model.hidden.total > 0 ? 'What is hidden is not searched: it may hold more' : undefined}>
              {atLeast(share(found.total, model.total), model.hidden.total)}
            </b>{' '}
            of total matches
            {zoomed ? <> · {share(found.total, model.total_[zoomNode.value] as number)} of view</> : null}
            <span class="muted">
              {' '}
              · {count(found.outermost.length)} {found.outermost.length === 1 ? 'place' : 'places'}
            </span>
          </>
        ) : null}
      </span>
    </div>
  );
}
