// The bar above every page: where one is, the range, refresh, theme, help.

import { useSignal } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import { chooseTheme, dark, go, helpOpen, live, refreshNow, view } from '../state.ts';
import { clockSkew, PRESETS, presetOf, rangeText, resolveTime } from '../time.ts';
import { exploreOf, locksOf, servicesOf } from '../url.ts';
import { Icon } from './icon.tsx';
import { Link } from './link.tsx';

/** Local time as datetime-local wants it. */
function localInput(ms: number): string {
  const date = new Date(ms - new Date(ms).getTimezoneOffset() * 60_000);
  return date.toISOString().slice(0, 19);
}

function CustomRange({ close }: { close: () => void }) {
  const now = Date.now() + clockSkew.value;
  const from = useRef<HTMLInputElement>(null);
  const to = useRef<HTMLInputElement>(null);
  const problem = useSignal('');
  const apply = (event: Event) => {
    event.preventDefault();
    const start = Date.parse(from.current?.value ?? '');
    const end = Date.parse(to.current?.value ?? '');
    if (!(start < end)) {
      problem.value = 'The range must begin before it ends.';
      return;
    }
    go({ from: String(start), to: String(end), sel: null });
    close();
  };
  return (
    <form class="popover range-custom" onSubmit={apply}>
      <label>
        From <input ref={from} type="datetime-local" step="1" value={localInput(resolveTime(view.value.from, now))} />
      </label>
      <label>
        To <input ref={to} type="datetime-local" step="1" value={localInput(resolveTime(view.value.to, now))} />
      </label>
      {problem.value ? <p class="problem">{problem.value}</p> : null}
      <div class="popover-actions">
        <button type="button" onClick={close}>
          Cancel
        </button>
        <button type="submit" class="primary">
          Apply
        </button>
      </div>
    </form>
  );
}

function Range() {
  const open = useSignal(false);
  const box = useRef<HTMLDivElement>(null);
  const { from, to } = view.value;
  const preset = presetOf(from, to);
  useEffect(() => {
    const away = (event: Event) => {
      if (!box.current?.contains(event.target as Node)) open.value = false;
    };
    addEventListener('pointerdown', away);
    return () => removeEventListener('pointerdown', away);
  }, []);
  return (
    <div class="range" ref={box}>
      <div class="segments" role="group" aria-label="Time range">
        {PRESETS.map(([name, start]) => (
          <button
            key={name}
            type="button"
            aria-pressed={name === preset}
            onClick={() => go({ from: start, to: 'now', sel: null })}
          >
            {name}
          </button>
        ))}
        <button
          type="button"
          aria-pressed={preset === undefined}
          aria-expanded={open.value}
          onClick={() => (open.value = !open.value)}
        >
          {preset === undefined ? rangeText(from, to, Date.now() + clockSkew.value) : 'custom'}
        </button>
      </div>
      {open.value ? <CustomRange close={() => (open.value = false)} /> : null}
    </div>
  );
}

function Refresh() {
  const { refresh } = view.value;
  return (
    <div class="segments refresh">
      <button type="button" class="icon-button" title="Refresh now (r)" aria-label="Refresh now" onClick={refreshNow}>
        <Icon name="refresh" />
      </button>
      <select
        aria-label="Refresh by itself"
        value={live.value ? String(refresh) : '0'}
        disabled={!live.value}
        title={live.value ? 'Refresh by itself' : 'This range does not follow the clock'}
        onChange={(event) => go({ refresh: Number(event.currentTarget.value) }, 'replace')}
      >
        <option value="0">off</option>
        <option value="5">5 s</option>
        <option value="10">10 s</option>
        <option value="30">30 s</option>
        <option value="60">1 min</option>
        <option value="300">5 min</option>
      </select>
    </div>
  );
}

export function TopBar() {
  const now = view.value;
  return (
    <header class="topbar">
      <Link to={servicesOf(now)} class="brand" label="Vesta, services">
        <Icon name="flame" />
        <span>Vesta</span>
      </Link>
      <nav aria-label="Pages">
        <Link to={servicesOf(now)} current={now.page === 'services'}>
          Services
        </Link>
        <Link to={now.page === 'explore' ? now : exploreOf(now, '')} current={now.page === 'explore'}>
          Explore
        </Link>
        <Link to={now.page === 'locks' ? now : locksOf(now)} current={now.page === 'locks'}>
          Locks
        </Link>
      </nav>
      <span class="spacer" />
      <Range />
      <Refresh />
      <button
        type="button"
        class="icon-button"
        title="Light or dark (t)"
        aria-label={dark.value ? 'Light colours' : 'Dark colours'}
        onClick={() => chooseTheme(dark.value ? 'light' : 'dark')}
      >
        <Icon name={dark.value ? 'sun' : 'moon'} />
      </button>
      <button
        type="button"
        class="icon-button"
        title="Keys (?)"
        aria-label="Help"
        aria-expanded={helpOpen.value}
        onClick={() => (helpOpen.value = !helpOpen.value)}
      >
        <Icon name="help" />
      </button>
    </header>
  );
}
