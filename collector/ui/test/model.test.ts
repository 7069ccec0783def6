import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { FlameAnswer } from '../src/api.ts';
import { buildModel, childrenOf, functionTotals, MalformedTree, pathOf, PathHashes } from '../src/flame/model.ts';
import { collectMatches, matchRegex, matchText } from '../src/search.ts';
import { answerOf, randomAnswer, type Shape } from './trees.ts';

// total 100: main 90 (work 60 (work 20), read 25), idle 10
const SMALL: Shape = [
  'total',
  0,
  [
    [
      'main',
      5,
      [
        ['work', 40, [['work', 20, []]]],
        ['read', 25, []],
      ],
    ],
    ['idle', 10, []],
  ],
];

test('a node is as wide as itself and its children, and children stand side by side', () => {
  for (let seed = 1; seed <= 30; seed += 1) {
    const model = buildModel(randomAnswer(seed, 3000, seed % 2 === 0));
    for (let node = 0; node < model.count; node += 1) {
      let edge = model.left[node] as number;
      let sum = model.self[node] as number;
      for (const child of childrenOf(model, node)) {
        assert.equal(model.parent[child], node);
        assert.ok(Math.abs((model.left[child] as number) - edge) < 1e-6, 'a child begins where its neighbour ends');
        edge += model.total_[child] as number;
        sum += model.total_[child] as number;
      }
      assert.ok(Math.abs(sum - (model.total_[node] as number)) < 1e-6 * (model.total_[node] as number) + 1e-9);
    }
  }
});

test('rows hold every node once, left to right', () => {
  const model = buildModel(randomAnswer(3, 5000, true));
  const seen = new Set<number>();
  for (let d = 0; d < model.depths; d += 1) {
    let edge = -1;
    for (let i = model.rowStart[d] as number; i < (model.rowStart[d + 1] as number); i += 1) {
      const node = model.rowNodes[i] as number;
      assert.equal(model.depth[node], d);
      assert.ok((model.left[node] as number) >= edge);
      edge = model.left[node] as number;
      seen.add(node);
    }
  }
  assert.equal(seen.size, model.count);
});

test('what pruning hid becomes a node behind its siblings', () => {
  const answer = answerOf(SMALL);
  answer.nodes.self[1] = 1;
  answer.nodes.hidden[1] = 4;
  const model = buildModel(answer);
  const children = childrenOf(model, 1);
  const hidden = children.at(-1) as number;
  assert.equal(children.length, 3);
  assert.equal(model.func[hidden], model.hiddenFunc);
  assert.equal(model.total_[hidden], 4);
  assert.equal(model.left[hidden], 85);
});

test('a recursive function counts once a stack', () => {
  const model = buildModel(answerOf(SMALL));
  const f = model.functions.name.indexOf('work');
  const { self, total } = functionTotals(model, 0);
  assert.equal(self[f], 60);
  assert.equal(total[f], 60);
  const below = functionTotals(model, 3);
  assert.equal(below.total[f], 20);
});

test('the same path has the same hash in another tree, another path another one', () => {
  const one = buildModel(randomAnswer(5, 4000, false));
  const hashes = new PathHashes(one);
  const names = (node: number) =>
    pathOf(one, node)
      .map((n) => one.functions.name[one.func[n] as number])
      .join('/');
  const all = new Map<string, string>();
  for (let node = 0; node < one.count; node += 1) {
    const known = all.get(names(node));
    assert.ok(known === undefined || known === hashes.of(node));
    all.set(names(node), hashes.of(node));
  }
  assert.equal(new Set(all.values()).size, all.size, 'as many hashes as paths');
  for (const node of [0, 1, 77, 2048]) assert.equal(names(hashes.find(hashes.of(node))), names(node));
  assert.equal(hashes.find('0000000000000000'), -1);
  const small = buildModel(answerOf(SMALL));
  const larger = buildModel(answerOf(['total', 0, [['before', 7, []], ...SMALL[2]]]));
  const a = new PathHashes(small);
  const b = new PathHashes(larger);
  const work = pathOf(small, 3);
  assert.deepEqual(work, [0, 1, 2, 3]);
  const found = b.find(a.of(3));
  assert.deepEqual(
    pathOf(larger, found).map((n) => larger.functions.name[larger.func[n] as number]),
    ['total', 'main', 'work', 'work'],
  );
});

test('a malformed answer is refused with a reason', () => {
  const broken: [string, (answer: FlameAnswer) => unknown][] = [
    ['differ in length', (a) => (a.nodes.total as number[]).pop()],
    ['skips a level', (a) => ((a.nodes.depth as number[])[1] = 3)],
    ['second root', (a) => ((a.nodes.depth as number[])[2] = 0)],
    ['not a level', (a) => ((a.nodes.depth as number[])[2] = 1e9)],
    ['not a level', (a) => ((a.nodes.depth as number[])[2] = -1)],
    ['names a function', (a) => ((a.nodes.func as number[])[2] = 99)],
    ['names a string', (a) => ((a.functions.name as number[])[1] = 99)],
  ];
  for (const [reason, damage] of broken) {
    const answer = answerOf(SMALL);
    damage(answer);
    assert.throws(
      () => buildModel(answer),
      (error) => error instanceof MalformedTree && error.message.includes(reason),
      reason,
    );
  }
});

test('an empty answer is an empty model', () => {
  const model = buildModel({
    ...answerOf(SMALL),
    nodes: { func: [], total: [], self: [], depth: [], hidden: [], flags: [] },
  });
  assert.equal(model.count, 0);
  assert.equal(model.depths, 0);
  assert.equal(collectMatches(model, new Uint8Array(model.functions.name.length), 0).total, 0);
});

test('negative values take no room', () => {
  const answer = answerOf(SMALL);
  (answer.nodes.total as number[])[5] = -10;
  const model = buildModel(answer);
  assert.equal(model.total_[5], 0);
});

test('a stack with two matches counts once', () => {
  const model = buildModel(answerOf(SMALL));
  const { name } = model.functions;
  const check = (mask: Uint8Array, root: number, places: number, total: number) => {
    const found = collectMatches(model, mask, root);
    assert.equal(found.outermost.length, places);
    assert.equal(found.total, total);
  };
  check(matchText(name, 'WORK'), 0, 1, 60);
  check(matchText(name, 'r'), 0, 2, 85);
  check(matchRegex(name, '^(idle|read)$'), 0, 2, 35);
  check(matchRegex(name, 'Work'), 0, 0, 0);
  check(matchText(name, 'work'), 3, 1, 20);
  check(matchText(name, 'nothing'), 0, 0, 0);
  assert.throws(() => matchRegex(name, '('));
});
