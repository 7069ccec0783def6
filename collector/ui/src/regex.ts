// Regular expressions of the user run in a worker with a time budget: `(a+)+$` must cost a search, not the page.
// This is the page's side; the worker's is worker.ts, in the same app.js.

/** A search over 60,000 names takes 20 ms; ten times that is a runaway, plus the start of the worker. */
export const REGEX_BUDGET_MS = 500;

export interface Question {
  readonly id: number;
  readonly pattern: string;
  /** Sent when they differ from those of the last question. */
  readonly names?: readonly string[];
}

export interface Answer {
  readonly id: number;
  readonly found?: Uint8Array;
  readonly error?: string;
}

export class RegexFailure extends Error {}

/** The script that runs now is the only one the page ever starts a worker from. */
const SCRIPT = (document.currentScript as HTMLScriptElement | null)?.src ?? '/app.js';

interface ScriptPolicy {
  createScriptURL(url: string): string;
}

/** The page's side: one worker, one question at a time. */
export class RegexWorker {
  readonly #script: string;
  #worker: Worker | null = null;
  #names: readonly string[] | null = null;
  #id = 0;
  #stop: (() => void) | null = null;

  constructor() {
    const factory = (globalThis as { trustedTypes?: { createPolicy(name: string, rules: ScriptPolicy): ScriptPolicy } })
      .trustedTypes;
    const policy = factory?.createPolicy('vesta-worker', { createScriptURL: () => SCRIPT });
    this.#script = policy ? policy.createScriptURL(SCRIPT) : SCRIPT;
  }

  /** Matches by name. A newer question stops an older one, which then never answers. */
  match(names: readonly string[], pattern: string): Promise<Uint8Array> {
    this.#stop?.();
    const worker = (this.#worker ??= new Worker(this.#script));
    this.#id += 1;
    const id = this.#id;
    return new Promise((resolve, reject) => {
      const end = () => {
        clearTimeout(timer);
        worker.onmessage = null;
        worker.onerror = null;
        this.#stop = null;
      };
      const kill = () => {
        end();
        worker.terminate();
        this.#worker = null;
        this.#names = null;
      };
      const timer = setTimeout(() => {
        kill();
        reject(new RegexFailure(`the expression takes longer than ${REGEX_BUDGET_MS} ms`));
      }, REGEX_BUDGET_MS);
      this.#stop = kill;
      worker.onerror = () => {
        kill();
        reject(new RegexFailure('the search worker cannot start'));
      };
      worker.onmessage = ({ data }: MessageEvent<Answer>) => {
        if (data.id !== id) return;
        end();
        if (data.found) resolve(data.found);
        else reject(new RegexFailure(data.error ?? 'not a regular expression'));
      };
      worker.postMessage({ id, pattern, ...(this.#names === names ? {} : { names }) } satisfies Question);
      this.#names = names;
    });
  }
}
