// What went wrong, with its cure, above what was there before.

import type { ApiError } from '../api.ts';
import { visible } from '../names.ts';

export function Problem({ error, stale }: { error: ApiError; stale: boolean }) {
  return (
    <div class="notice problem" role="alert">
      <b>{visible(error.message)}</b>
      {error.hint ? <span> {visible(error.hint)}</span> : null}
      {stale ? <span> What you see is older.</span> : null}
      {error.requestId ? <span class="muted"> Request {visible(error.requestId)}</span> : null}
    </div>
  );
}

export function Warnings({ warnings }: { warnings: readonly string[] }) {
  return (
    <>
      {[...new Set(warnings)].map((warning) => (
        <div key={warning} class="notice" role="status">
          {warning}
        </div>
      ))}
    </>
  );
}
