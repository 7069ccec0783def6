// Before the first profile: the exact command, and an eye on the collector that turns into the graph.

import { effect, useSignal, useSignalEffect } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { meta, neverFed } from '../explore.ts';
import { go, refreshNow, view } from '../state.ts';
import { DEFAULTS } from '../url.ts';

/** How often the first-run page looks for data: a person waits for it. */
const LOOK_MS = 2000;

/** What the first look at a system shows: an hour would be a sliver at its right edge. */
const FIRST_RANGE = 'now-5m';

let waited = false;
// The first profile turns the waiting page into the graph.
effect(() => {
  if (neverFed.value) waited = true;
  else if (waited && meta.data.value) {
    waited = false;
    const { from } = view.peek();
    go({ page: 'explore', from: from === DEFAULTS.from ? FIRST_RANGE : from });
  }
});

function Command({ text }: { text: string }) {
  const copied = useSignal(false);
  const copy = () =>
    navigator.clipboard?.writeText(text).then(() => {
      copied.value = true;
      setTimeout(() => (copied.value = false), 1500);
    });
  return (
    <div class="command">
      <code>{text}</code>
      <button type="button" onClick={copy}>
        {copied.value ? 'copied' : 'copy'}
      </button>
    </div>
  );
}

/** The first-run page. */
export function FirstRun() {
  useSignalEffect(() => {
    const timer = setInterval(refreshNow, LOOK_MS);
    return () => clearInterval(timer);
  });
  const here = location.hostname.includes(':') || location.hostname === '' ? 'COLLECTOR' : location.hostname;
  return (
    <main class="empty">
      <h1>No profile yet</h1>
      <p>This collector is ready. Let it see a host: every process, from the kernel up.</p>
      <h2>This host, collector and agent at once</h2>
      <Command text="sudo vesta local" />
      <h2>An agent on a host that reaches this collector</h2>
      <Command text={`sudo vesta-agent run --collector http://${here}:4317`} />
      <p class="waiting" role="status">
        <span class="pulse" aria-hidden="true" /> waiting for first profile…
      </p>
      {meta.error.value ? (
        <p class="problem">
          {meta.error.value.message} {meta.error.value.hint}
        </p>
      ) : null}
    </main>
  );
}

/** Nothing in this range or filter, while the collector has data. */
export function NothingHere({ children }: { children: ComponentChildren }) {
  return <div class="nothing">{children}</div>;
}
