// What the collector answers (API.md), how it is asked, and its errors.

export interface Coverage {
  readonly hosts: number;
  readonly host_ms: number;
  readonly window_ms: number;
  readonly cores: number;
}

export interface Losses {
  readonly cut: readonly { readonly reason: string; readonly total: number }[];
  readonly lost: readonly { readonly reason: string; readonly samples: number }[];
  readonly sent: number;
}

export interface ProfileType {
  readonly id: string;
  readonly unit: string;
  readonly label: string;
  readonly period_ns: number;
}

export interface Meta {
  readonly version: string;
  readonly features: readonly string[];
  readonly now: number;
  readonly data: { readonly disk_bytes: number; readonly disk_bytes_max: number };
  readonly profile_types: readonly ProfileType[];
  readonly auth: { readonly required: boolean };
}

export interface ServiceRow {
  readonly service: string;
  readonly cores: number;
  readonly share: number;
  readonly trend: readonly number[];
  readonly samples: number;
  readonly hosts: number;
  readonly containers: number;
  readonly named_share: number;
}

export interface Services {
  readonly from: number;
  readonly to: number;
  readonly type: string;
  readonly unit: string;
  readonly total_cores: number;
  readonly coverage: Coverage;
  readonly rows: readonly ServiceRow[];
  readonly warnings: readonly string[];
}

export interface Labels {
  readonly labels: readonly { readonly name: string; readonly values: number }[];
}

export interface LabelValues {
  readonly values: readonly { readonly value: string; readonly samples: number }[];
}

export interface Series {
  readonly t0: number;
  readonly step: number;
  readonly type: string;
  readonly unit: string;
  readonly value_unit: string;
  readonly series: readonly { readonly labels: Readonly<Record<string, string>>; readonly values: readonly number[] }[];
  readonly other: readonly number[] | null;
  readonly warnings: readonly string[];
}

export interface FlameAnswer {
  readonly type: string;
  readonly unit: string;
  readonly total: number;
  readonly samples: number;
  readonly period_ns: number;
  readonly coverage: Coverage;
  readonly losses: Losses;
  readonly hidden: { readonly nodes: number; readonly total: number };
  readonly strings: readonly string[];
  readonly functions: {
    readonly name: readonly number[];
    readonly file: readonly number[];
    readonly line: readonly number[];
    readonly kind: readonly string[];
    readonly module: readonly number[];
    readonly named: readonly number[];
  };
  readonly nodes: {
    readonly func: readonly number[];
    readonly total: readonly number[];
    readonly self: readonly number[];
    readonly depth: readonly number[];
    readonly hidden: readonly number[];
    readonly flags: readonly number[];
  };
  readonly warnings: readonly string[];
}

export interface FunctionRow {
  readonly name: string;
  readonly file: string;
  readonly line: number;
  readonly kind: string;
  readonly module: string;
  readonly named: boolean;
  readonly self: number;
  readonly total: number;
}

export interface Functions {
  readonly unit: string;
  readonly total: number;
  readonly samples: number;
  readonly coverage: Coverage;
  readonly rows: readonly FunctionRow[];
  readonly warnings: readonly string[];
}

export interface LockFigures {
  readonly wait_ns: number;
  readonly contentions: number;
  readonly holder_samples: number;
}

export interface LockFunction {
  readonly name: string;
  readonly kind: string;
  readonly module: string;
  readonly stack: readonly string[];
}

export interface LockRow extends LockFigures {
  readonly lock: string;
  readonly place: 'static' | 'address';
  readonly kind: string;
  readonly service: string;
  readonly services: number;
  readonly executable: string;
  readonly host: string;
  readonly pid: string;
  readonly mean_ns: number | null;
  readonly threads: number;
  readonly waiters: readonly (LockFunction & { readonly wait_ns: number; readonly contentions: number })[];
  readonly holders: readonly (LockFunction & { readonly samples: number })[];
  readonly filter: string;
}

export interface Locks {
  readonly from: number;
  readonly to: number;
  readonly coverage: Coverage;
  readonly locks: number;
  readonly total: LockFigures;
  readonly rows: readonly LockRow[];
  readonly others: LockFigures & { readonly locks: number };
  readonly warnings: readonly string[];
}

/** An answer that is an error, or none at all. `passing` says that asking again may help. */
export class ApiError extends Error {
  constructor(
    message: string,
    readonly hint: string,
    readonly code: string,
    readonly requestId: string,
    readonly passing: boolean,
  ) {
    super(message);
  }
}

const BASE = '/api/v1/projects/default';

export type Params = Readonly<Record<string, string | number | undefined>>;

/** The URL of a question; empty and undefined parameters are left out. */
export function apiUrl(path: string, params: Params): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== undefined && value !== '') query.set(name, String(value));
  }
  const text = query.toString();
  return `${BASE}${path}${text === '' ? '' : `?${text}`}`;
}

async function errorOf(response: Response): Promise<ApiError> {
  const passing = response.status === 429 || response.status >= 500;
  try {
    const { error } = (await response.json()) as {
      error: { code: string; message: string; hint?: string; request_id?: string };
    };
    return new ApiError(error.message, error.hint ?? '', error.code, error.request_id ?? '', passing);
  } catch {
    return new ApiError(
      `The collector answered with status ${response.status}.`,
      '',
      String(response.status),
      '',
      passing,
    );
  }
}

/** Asks and waits for the answer. Throws ApiError, or the AbortError of `signal`. */
export async function ask<T>(path: string, params: Params, signal?: AbortSignal): Promise<T> {
  let response: Response;
  try {
    response = await fetch(apiUrl(path, params), {
      headers: { accept: 'application/json' },
      ...(signal ? { signal } : {}),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(
      'The collector does not answer.',
      'Is vesta still running? This page asks again by itself.',
      'unreachable',
      '',
      true,
    );
  }
  if (!response.ok) throw await errorOf(response);
  try {
    return (await response.json()) as T;
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(
      'The answer of the collector broke off.',
      'This page asks again by itself.',
      'incomplete',
      '',
      true,
    );
  }
}
