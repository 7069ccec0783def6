// The list of keys, and which version this is.

import { useEffect, useRef } from 'preact/hooks';
import { meta } from '../explore.ts';
import { KEYS } from '../keys.ts';
import { helpOpen } from '../state.ts';

export function Help() {
  const dialog = useRef<HTMLDialogElement>(null);
  const open = helpOpen.value;
  useEffect(() => {
    if (open && !dialog.current?.open) dialog.current?.showModal();
    if (!open && dialog.current?.open) dialog.current.close();
  }, [open]);
  return (
    <dialog
      class="help"
      ref={dialog}
      aria-label="Keys"
      onClose={() => (helpOpen.value = false)}
      onClick={(event) => {
        if (event.target === dialog.current) helpOpen.value = false;
      }}
    >
      <div class="help-body">
        <h2>Keys</h2>
        <dl>
          {KEYS.map(([key, what]) => (
            <div key={key}>
              <dt>
                <kbd>{key}</kbd>
              </dt>
              <dd>{what}</dd>
            </div>
          ))}
        </dl>
        <h2>Frames</h2>
        <p class="legend">
          {(['native', 'kernel', 'go', 'jvm', 'python', 'node', 'managed', 'unknown', 'marker'] as const).map(
            (group) => (
              <span key={group}>
                <span class={`kind kind-${group}`} /> {LEGEND[group]}
              </span>
            ),
          )}
        </p>
        <p class="muted">Vesta {meta.data.value?.version ?? ''}</p>
      </div>
    </dialog>
  );
}

const LEGEND = {
  native: 'native (C, C++, Rust)',
  kernel: 'kernel, striped',
  go: 'Go',
  jvm: 'JVM',
  python: 'Python',
  node: 'JavaScript',
  managed: 'Ruby, PHP, Perl, .NET, BEAM, LuaJIT',
  unknown: 'unknown, hatched',
  marker: 'marker: where a stack ends early',
};
