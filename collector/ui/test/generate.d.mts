export function random(seed: number): () => number;
export function generate(options: {
  nodes: number;
  firstDataAt: number;
}): (path: string, params: URLSearchParams) => { status: number; body: unknown };
