// A merged tree in typed arrays, checked and laid out along one axis of values. No DOM.
//
// Preorder columns come in; what pruning hid comes in as a number beside its parent and becomes a node of its own
// here, so that every node is exactly as wide as itself plus its children, and drawing, hit test and tooltip need
// no second rule.

import type { FlameAnswer, Losses } from '../api.ts';
import { visible } from '../names.ts';

/** The widest and deepest tree that is accepted: the API's own limit is lower, this one guards the page. */
export const NODES_MAX = 2_000_000;
export const DEPTH_MAX = 65_535;

export const FLAG_INLINED = 2;

/** The kind of the nodes that stand for what pruning hid. */
export const KIND_HIDDEN = 'hidden';

export interface Functions {
  /** Shown name: control and bidirectional characters escaped. */
  readonly name: readonly string[];
  readonly file: readonly string[];
  readonly line: readonly number[];
  readonly kind: readonly string[];
  readonly module: readonly string[];
  readonly named: readonly boolean[];
}

export interface FlameModel {
  readonly unit: string;
  readonly total: number;
  readonly samples: number;
  readonly periodNs: number;
  readonly cores: number;
  readonly hosts: number;
  readonly hostMs: number;
  readonly windowMs: number;
  readonly losses: Losses;
  readonly hidden: { readonly nodes: number; readonly total: number };
  readonly warnings: readonly string[];
  readonly functions: Functions;
  /** Index of the function that stands for hidden frames; -1 if nothing is hidden. */
  readonly hiddenFunc: number;
  readonly count: number;
  readonly func: Uint32Array;
  readonly total_: Float64Array;
  readonly self: Float64Array;
  readonly depth: Uint16Array;
  readonly flags: Uint8Array;
  readonly parent: Int32Array;
  /** First index behind the subtree. */
  readonly end: Uint32Array;
  /** Left edge in values; the width is `total_`. */
  readonly left: Float64Array;
  /** Nodes of depth d, left to right: rowNodes[rowStart[d] .. rowStart[d + 1]]. */
  readonly rowStart: Uint32Array;
  readonly rowNodes: Uint32Array;
  readonly depths: number;
}

export class MalformedTree extends Error {}

const fail = (what: string): never => {
  throw new MalformedTree(`The flame graph that the collector sent is malformed: ${what}.`);
};

/** The answer as a model. Throws MalformedTree when columns, indices or depths do not fit together. */
export function buildModel(answer: FlameAnswer): FlameModel {
  const { nodes } = answer;
  const given = nodes.func.length;
  for (const column of [nodes.total, nodes.self, nodes.depth, nodes.hidden, nodes.flags]) {
    if (column.length !== given) fail('its columns differ in length');
  }
  if (given > NODES_MAX) fail(`it has more than ${NODES_MAX} nodes`);
  const functions = readFunctions(answer);
  const functionCount = functions.name.length;
  const hiddenNodes = nodes.hidden.reduce((sum, value) => sum + (value > 0 ? 1 : 0), 0);
  const hiddenFunc = hiddenNodes > 0 ? functionCount : -1;
  const count = given + hiddenNodes;

  const func = new Uint32Array(count);
  const total = new Float64Array(count);
  const self = new Float64Array(count);
  const depth = new Uint16Array(count);
  const flags = new Uint8Array(count);
  const parent = new Int32Array(count);
  const end = new Uint32Array(count);
  // Open nodes, from the root down: our index, and what the server hid below it.
  const open: number[] = [];
  const openHidden: number[] = [];
  let at = 0;
  const close = () => {
    const node = open.pop() as number;
    const hidden = openHidden.pop() as number;
    if (hidden > 0) {
      func[at] = hiddenFunc;
      total[at] = hidden;
      self[at] = hidden;
      depth[at] = (depth[node] as number) + 1;
      parent[at] = node;
      end[at] = at + 1;
      at += 1;
    }
    end[node] = at;
  };
  for (let i = 0; i < given; i += 1) {
    const level = nodes.depth[i] as number;
    if (!(level >= 0 && level <= DEPTH_MAX && Number.isInteger(level))) fail('a depth is not a level');
    if (i > 0 && level === 0) fail('it has a second root');
    while (open.length > level) close();
    if (open.length !== level) fail('a depth skips a level');
    const which = nodes.func[i] as number;
    if (!(which >= 0 && which < functionCount)) fail('a node names a function that is not there');
    func[at] = which;
    total[at] = Math.max(0, Number(nodes.total[i]) || 0);
    self[at] = Math.max(0, Number(nodes.self[i]) || 0);
    depth[at] = level;
    flags[at] = nodes.flags[i] as number;
    parent[at] = level === 0 ? -1 : (open[level - 1] as number);
    open.push(at);
    openHidden.push(Math.max(0, nodes.hidden[i] as number));
    at += 1;
  }
  while (open.length > 0) close();

  const left = leftEdges(total, parent, count);
  const rows = buildRows(depth, count);
  return {
    unit: answer.unit,
    total: count > 0 ? (total[0] as number) : 0,
    samples: answer.samples,
    periodNs: answer.period_ns,
    cores: answer.coverage.cores,
    hosts: answer.coverage.hosts,
    hostMs: answer.coverage.host_ms,
    windowMs: answer.coverage.window_ms,
    losses: answer.losses,
    hidden: answer.hidden,
    warnings: answer.warnings.map(visible),
    functions: hiddenFunc < 0 ? functions : withHidden(functions),
    hiddenFunc,
    count,
    func,
    total_: total,
    self,
    depth,
    flags,
    parent,
    end,
    left,
    ...rows,
  };
}

function readFunctions(answer: FlameAnswer): Functions {
  const given = answer.functions;
  const size = given.name.length;
  for (const column of [given.file, given.line, given.kind, given.module, given.named]) {
    if (column.length !== size) fail('the columns of its functions differ in length');
  }
  // Many functions share a file and a module: escape each string once.
  const strings = answer.strings.map(visible);
  const text = (index: number) => strings[index] ?? fail('a function names a string that is not there');
  return {
    name: given.name.map(text),
    file: given.file.map(text),
    line: given.line,
    kind: given.kind,
    module: given.module.map(text),
    named: given.named.map((named) => named === 1),
  };
}

function withHidden(functions: Functions): Functions {
  return {
    name: [...functions.name, '(hidden frames)'],
    file: [...functions.file, ''],
    line: [...functions.line, 0],
    kind: [...functions.kind, KIND_HIDDEN],
    module: [...functions.module, ''],
    named: [...functions.named, true],
  };
}

/** Children stand side by side from their parent's left edge; the parent's self value is the room at the right. */
function leftEdges(total: Float64Array, parent: Int32Array, count: number): Float64Array {
  const left = new Float64Array(count);
  const next = new Float64Array(count);
  for (let i = 0; i < count; i += 1) {
    const above = parent[i] as number;
    const edge = above < 0 ? 0 : (next[above] as number);
    left[i] = edge;
    next[i] = edge;
    if (above >= 0) next[above] = edge + (total[i] as number);
  }
  return left;
}

function buildRows(depth: Uint16Array, count: number): Pick<FlameModel, 'rowStart' | 'rowNodes' | 'depths'> {
  let depths = 0;
  for (let i = 0; i < count; i += 1) depths = Math.max(depths, (depth[i] as number) + 1);
  const rowStart = new Uint32Array(depths + 1);
  for (let i = 0; i < count; i += 1) {
    const slot = (depth[i] as number) + 1;
    rowStart[slot] = (rowStart[slot] as number) + 1;
  }
  for (let d = 0; d < depths; d += 1) rowStart[d + 1] = (rowStart[d + 1] as number) + (rowStart[d] as number);
  const fill = rowStart.slice();
  const rowNodes = new Uint32Array(count);
  // Preorder meets the nodes of one depth from left to right.
  for (let i = 0; i < count; i += 1) {
    const d = depth[i] as number;
    rowNodes[fill[d] as number] = i;
    fill[d] = (fill[d] as number) + 1;
  }
  return { rowStart, rowNodes, depths };
}

/** From the root to the node, both included. */
export function pathOf(model: FlameModel, node: number): number[] {
  const path: number[] = [];
  for (let at = node; at >= 0; at = model.parent[at] as number) path.push(at);
  return path.reverse();
}

/** Children of a node, left to right. */
export function childrenOf(model: FlameModel, node: number): number[] {
  const children: number[] = [];
  const end = model.end[node] as number;
  for (let at = node + 1; at < end; at = model.end[at] as number) children.push(at);
  return children;
}

/** FNV-1a over UTF-16 units from a seed; two seeds make 64 bits, enough for a million paths. */
function hashText(text: string, seed: number): number {
  let hash = seed;
  for (let i = 0; i < text.length; i += 1) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  return hash;
}

function mix(hash: number, value: number): number {
  let h = Math.imul(hash ^ value, 0x85ebca6b);
  h ^= h >>> 13;
  h = Math.imul(h, 0xc2b2ae35);
  return h ^ (h >>> 16);
}

/** Hashes of paths by name, module and kind: the same path has the same hash in every answer and every session. */
export class PathHashes {
  readonly #high: Int32Array;
  readonly #low: Int32Array;

  constructor(model: FlameModel) {
    const { name, module, kind } = model.functions;
    const key = (f: number) => `${kind[f]}\n${module[f]}\n${name[f]}`;
    const functionHigh = Int32Array.from(name, (_, f) => hashText(key(f), 0x811c9dc5 | 0));
    const functionLow = Int32Array.from(name, (_, f) => hashText(key(f), 0x2f0b4a31));
    this.#high = new Int32Array(model.count);
    this.#low = new Int32Array(model.count);
    for (let i = 0; i < model.count; i += 1) {
      const above = model.parent[i] as number;
      const f = model.func[i] as number;
      this.#high[i] = mix(above < 0 ? 0 : (this.#high[above] as number), functionHigh[f] as number);
      this.#low[i] = mix(above < 0 ? 1 : (this.#low[above] as number), functionLow[f] as number);
    }
  }

  /** 16 hexadecimal digits. */
  of(node: number): string {
    const hex = (value: number) => (value >>> 0).toString(16).padStart(8, '0');
    return hex(this.#high[node] as number) + hex(this.#low[node] as number);
  }

  /** The node with this hash; -1 if this tree has none. */
  find(text: string): number {
    const high = Number.parseInt(text.slice(0, 8), 16) | 0;
    const low = Number.parseInt(text.slice(8), 16) | 0;
    for (let i = 0; i < this.#high.length; i += 1) if (this.#high[i] === high && this.#low[i] === low) return i;
    return -1;
  }
}

/** Self and total of every function below `root`; a recursive function counts once per stack. Indexed by function. */
export function functionTotals(model: FlameModel, root: number): { self: Float64Array; total: Float64Array } {
  const size = model.functions.name.length;
  const self = new Float64Array(size);
  const total = new Float64Array(size);
  // Where the outermost open occurrence of the function ends.
  const openUntil = new Uint32Array(size);
  const end = model.count === 0 ? 0 : (model.end[root] as number);
  for (let i = root; i < end; i += 1) {
    const f = model.func[i] as number;
    if (f === model.hiddenFunc) continue;
    self[f] = (self[f] as number) + (model.self[i] as number);
    if (i >= (openUntil[f] as number)) {
      total[f] = (total[f] as number) + (model.total_[i] as number);
      openUntil[f] = model.end[i] as number;
    }
  }
  return { self, total };
}
