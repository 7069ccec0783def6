// One question to the collector that follows signals: asks again when its parameters change, stops what is no longer
// wanted, keeps the last good answer on show meanwhile, and asks again by itself after passing failures.

import { computed, effect, type ReadonlySignal, signal } from '@preact/signals';
import { ApiError, ask, type Params } from './api.ts';

/** Waits between attempts after failures that may pass: doubles from the first to the last. */
const RETRY_FIRST_MS = 1000;
const RETRY_LAST_MS = 30_000;

export interface Resource<T> {
  /** The last good answer; it may be older than the parameters while `loading`. */
  readonly data: ReadonlySignal<T | null>;
  readonly error: ReadonlySignal<ApiError | null>;
  readonly loading: ReadonlySignal<boolean>;
  /** Ends it. */
  stop(): void;
}

export interface Question {
  readonly path: string;
  readonly params: Params;
  /** Counts what lets the same question be asked again. */
  readonly turn: number;
}

/** `question` reads signals; null asks nothing and keeps what is there. `shape` may throw to refuse an answer. */
export function resource<A, T = A>(question: () => Question | null, shape: (answer: A) => T): Resource<T> {
  const data = signal<T | null>(null);
  const error = signal<ApiError | null>(null);
  const loading = signal(false);
  // By its text: a state that changes elsewhere makes new objects, not new questions.
  const wanted = computed(() => JSON.stringify(question()));
  const stop = effect(() => {
    const asked = JSON.parse(wanted.value) as Question | null;
    if (!asked) return;
    const aborter = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let wait = RETRY_FIRST_MS;
    const attempt = async () => {
      if (aborter.signal.aborted) return;
      loading.value = true;
      try {
        const answer = await ask<A>(asked.path, asked.params, aborter.signal);
        if (aborter.signal.aborted) return;
        data.value = shape(answer);
        error.value = null;
      } catch (thrown) {
        if (aborter.signal.aborted) return;
        const failure =
          thrown instanceof ApiError
            ? thrown
            : new ApiError(
                thrown instanceof Error ? thrown.message : String(thrown),
                'Please report this with the version shown under “?”.',
                'page',
                '',
                false,
              );
        error.value = failure;
        if (failure.passing) {
          timer = setTimeout(attempt, wait);
          wait = Math.min(wait * 2, RETRY_LAST_MS);
        }
      }
      if (!aborter.signal.aborted) loading.value = false;
    };
    // Outside of the effect: what the attempt reads is not what the question depends on.
    queueMicrotask(attempt);
    return () => {
      aborter.abort();
      clearTimeout(timer);
      loading.value = false;
    };
  });
  return { data, error, loading, stop };
}
