// Trees for tests: small ones written down, large ones from a seed.

import type { FlameAnswer } from '../src/api.ts';
import { random } from './generate.mjs';

/** Name, self, children. */
export type Shape = [string, number, Shape[]];

type Writable<T> = T extends readonly (infer E)[]
  ? E[]
  : T extends object
    ? { -readonly [K in keyof T]: Writable<T[K]> }
    : T;

/** The collector's answer for a tree. */
export function answerOf(shape: Shape): Writable<FlameAnswer> {
  const strings: string[] = [''];
  const names: string[] = [];
  const functions = {
    name: [] as number[],
    file: [] as number[],
    line: [] as number[],
    kind: [] as string[],
    module: [] as number[],
    named: [] as number[],
  };
  const nodes = {
    func: [] as number[],
    total: [] as number[],
    self: [] as number[],
    depth: [] as number[],
    hidden: [] as number[],
    flags: [] as number[],
  };
  const func = (name: string) => {
    const known = names.indexOf(name);
    if (known >= 0) return known;
    names.push(name);
    strings.push(name);
    functions.name.push(strings.length - 1);
    functions.file.push(0);
    functions.line.push(0);
    functions.kind.push('native');
    functions.module.push(0);
    functions.named.push(1);
    return names.length - 1;
  };
  const emit = ([name, self, children]: Shape, depth: number): number => {
    const at = nodes.func.length;
    nodes.func.push(func(name));
    nodes.total.push(0);
    nodes.self.push(self);
    nodes.depth.push(depth);
    nodes.hidden.push(0);
    nodes.flags.push(0);
    const total = children.reduce((sum, child) => sum + emit(child, depth + 1), self);
    nodes.total[at] = total;
    return total;
  };
  const total = emit(shape, 0);
  return {
    type: 'cpu',
    unit: 'nanoseconds',
    total,
    samples: total,
    period_ns: 1,
    coverage: { hosts: 1, host_ms: 1000, window_ms: 1000, cores: 1 },
    hidden: { nodes: 0, total: 0 },
    strings,
    functions,
    nodes,
    losses: { cut: [], lost: [], sent: 0 },
    warnings: [],
  };
}

/** A tree of about `size` nodes with very wide and very narrow frames; `whole` makes all values whole numbers. */
export function randomAnswer(seed: number, size: number, whole: boolean): FlameAnswer {
  const rand = random(seed);
  let left = size;
  const grow = (depth: number, value: number): Shape => {
    left -= 1;
    const name = `f${Math.floor(rand() * 200)}`;
    const children: Shape[] = [];
    let rest = value;
    const branches = depth > 30 ? 0 : Math.floor(rand() ** 2 * (depth === 0 ? 40 : 7));
    for (let i = 0; i < branches && left > 0 && rest > 1e-3; i += 1) {
      const part = rest * rand() ** 3;
      const taken = whole ? Math.floor(part) : part;
      if (taken <= 0) continue;
      rest -= taken;
      children.push(grow(depth + 1, taken));
    }
    return [name, rest, children];
  };
  const best: Shape = ['total', 0, []];
  while (left > 0) best[2].push(grow(1, whole ? 1 + Math.floor(rand() ** 4 * 1e6) : rand() ** 4 * 1e6));
  return answerOf(best);
}
