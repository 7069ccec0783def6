// The question of the Explore page as chips: type, labels with their values, what splits the time line.

import { useSignal, useSignalEffect } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import { ask, type LabelValues } from '../api.ts';
import { labels, meta, splitBy } from '../explore.ts';
import { countShort } from '../format.ts';
import { visible } from '../names.ts';
import { formatSelector, type MatchOp, withMatcher } from '../selector.ts';
import { filterError, filterParam, go, matchers, setMatchers, view } from '../state.ts';
import { typeOf } from '../url.ts';
import { Icon } from './icon.tsx';

const VALUES_MAX = 50;
/** Typing faster than this asks once. */
const TYPING_MS = 120;
const OPS: readonly (readonly [MatchOp, string])[] = [
  ['=', 'is'],
  ['!=', 'is not'],
  ['=~', 'matches'],
  ['!~', 'matches not'],
];

/** Values of a label that begin with what is typed. */
function useValues(name: string, prefix: string) {
  const values = useSignal<LabelValues['values']>([]);
  const wanted = useSignal({ name, prefix });
  wanted.value = wanted.peek().name === name && wanted.peek().prefix === prefix ? wanted.peek() : { name, prefix };
  useSignalEffect(() => {
    const now = wanted.value;
    const { from, to } = view.value;
    const type = typeOf(view.value);
    if (now.name === '') return;
    const aborter = new AbortController();
    const timer = setTimeout(() => {
      const others = matchers.peek().filter((m) => m.name !== now.name);
      const filter = others.length === 0 ? '' : `{${formatSelector(others)}}`;
      ask<LabelValues>(
        `/labels/${encodeURIComponent(now.name)}/values`,
        { type, from, to, filter, prefix: now.prefix, limit: VALUES_MAX },
        aborter.signal,
      ).then(
        (answer) => (values.value = answer.values),
        // Typing goes on without suggestions.
        () => (values.value = []),
      );
    }, TYPING_MS);
    return () => {
      clearTimeout(timer);
      aborter.abort();
    };
  });
  return values.value;
}

function AddFilter({ close }: { close: () => void }) {
  const known = labels.data.value?.labels ?? [];
  const name = useSignal('service');
  const op = useSignal<MatchOp>('=');
  const typed = useSignal('');
  const active = useSignal(-1);
  const field = useRef<HTMLInputElement>(null);
  const regex = op.value === '=~' || op.value === '!~';
  const values = useValues(name.value, regex ? '' : typed.value);
  useEffect(() => field.current?.focus(), []);
  const add = (value: string) => {
    setMatchers(withMatcher(matchers.peek(), { name: name.peek(), op: op.peek(), value }));
    close();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
      const step = event.key === 'ArrowDown' ? 1 : -1;
      active.value = Math.max(-1, Math.min(values.length - 1, active.peek() + step));
      event.preventDefault();
    } else if (event.key === 'Enter') {
      add(values[active.peek()]?.value ?? typed.peek());
      event.preventDefault();
    } else if (event.key === 'Escape') {
      close();
      event.preventDefault();
    }
  };
  const names = known.length > 0 ? known : [{ name: 'service', values: 0 }];
  return (
    <div class="popover filter-add">
      <div class="filter-add-row">
        <select
          aria-label="Label"
          value={name.value}
          onChange={(event) => {
            name.value = event.currentTarget.value;
            active.value = -1;
            field.current?.focus();
          }}
        >
          {names.map((label) => (
            <option key={label.name} value={label.name}>
              {visible(label.name)}
            </option>
          ))}
        </select>
        <select
          aria-label="Comparison"
          value={op.value}
          onChange={(event) => (op.value = event.currentTarget.value as MatchOp)}
        >
          {OPS.map(([sign, word]) => (
            <option key={sign} value={sign}>
              {word}
            </option>
          ))}
        </select>
        <input
          ref={field}
          type="text"
          role="combobox"
          aria-label="Value"
          aria-expanded="true"
          aria-controls="filter-values"
          aria-activedescendant={active.value >= 0 ? `filter-value-${active.value}` : undefined}
          placeholder={regex ? 'regular expression' : 'value'}
          spellcheck={false}
          autocomplete="off"
          value={typed.value}
          onInput={(event) => {
            typed.value = event.currentTarget.value;
            active.value = -1;
          }}
          onKeyDown={onKeyDown}
        />
        <button type="button" class="primary" onClick={() => add(typed.value)}>
          Add
        </button>
      </div>
      <ul id="filter-values" class="values" role="listbox" aria-label="Values">
        {values.map((row, i) => (
          <li
            key={row.value}
            id={`filter-value-${i}`}
            role="option"
            aria-selected={i === active.value}
            onPointerDown={(event) => {
              event.preventDefault();
              add(row.value);
            }}
          >
            <span>{row.value === '' ? <i>empty</i> : visible(row.value)}</span>
            <span class="muted">{countShort(row.samples)}</span>
          </li>
        ))}
        {values.length === 0 ? (
          <li class="muted" aria-disabled="true">
            no value begins so in this range
          </li>
        ) : null}
      </ul>
    </div>
  );
}

const COMMON = ['service', 'host', 'container', 'pod', 'executable'];

export function QueryBar() {
  const adding = useSignal(false);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const away = (event: Event) => {
      if (!box.current?.contains(event.target as Node)) adding.value = false;
    };
    addEventListener('pointerdown', away);
    return () => removeEventListener('pointerdown', away);
  }, []);
  const types = meta.data.value?.profile_types ?? [];
  const { type, q, page } = view.value;
  const named = (labels.data.value?.labels ?? []).map((label) => label.name);
  const splits = [...new Set([...COMMON, ...named, ...(splitBy.value ? [splitBy.value] : [])])];
  return (
    <div class="query">
      {page === 'explore' ? (
        <select
          class="type"
          aria-label="Profile type"
          value={type}
          onChange={(event) => go({ type: event.currentTarget.value, root: '' })}
        >
          {(types.some((t) => t.id === type) ? types : [{ id: type, label: type }, ...types]).map((t) => (
            <option key={t.id} value={t.id}>
              {visible(t.label || t.id)}
            </option>
          ))}
        </select>
      ) : null}
      {matchers.value.map((m) => (
        <span key={`${m.name}${m.op}${m.value}`} class="chip">
          <span class="chip-name">{visible(m.name)}</span>
          <span class="chip-op">{m.op}</span>
          <span class="chip-value">{m.value === '' ? 'empty' : visible(m.value)}</span>
          <button
            type="button"
            class="chip-remove"
            aria-label={`Remove ${m.name} ${m.op} ${m.value}`}
            onClick={() => setMatchers(matchers.peek().filter((old) => old !== m))}
          >
            <Icon name="close" />
          </button>
        </span>
      ))}
      {filterError.value ? (
        <span class="problem">
          The filter {visible(filterParam.value)} does not parse: {filterError.value}.{' '}
          <button type="button" onClick={() => go({ q: '' })}>
            clear it
          </button>
        </span>
      ) : null}
      <div class="filter-box" ref={box}>
        <button type="button" class="add" aria-expanded={adding.value} onClick={() => (adding.value = !adding.value)}>
          <Icon name="plus" /> {q === '' ? 'filter: whole system' : 'filter'}
        </button>
        {adding.value ? <AddFilter close={() => (adding.value = false)} /> : null}
      </div>
      <span class="spacer" />
      {page === 'explore' ? (
        <label class="split">
          split by{' '}
          <select value={splitBy.value} onChange={(event) => go({ by: event.currentTarget.value })}>
            <option value="">nothing</option>
            {splits.map((name) => (
              <option key={name} value={name}>
                {visible(name)}
              </option>
            ))}
          </select>
        </label>
      ) : null}
    </div>
  );
}
