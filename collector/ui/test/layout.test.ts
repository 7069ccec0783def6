import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  DisplayList,
  framesOfRect,
  hitRect,
  layoutRow,
  layoutRows,
  nodeOfRect,
  type Window,
} from '../src/flame/layout.ts';
import { buildModel, type FlameModel } from '../src/flame/model.ts';
import { random } from './generate.mjs';
import { answerOf, randomAnswer } from './trees.ts';

/** Views of a model: all of it, some frames zoomed, odd cuts. */
function* views(model: FlameModel, seed: number): Generator<Window> {
  const rand = random(seed);
  for (const width of [1, 37, 800, 1601]) {
    yield { from: 0, to: model.total, width };
    for (let i = 0; i < 4; i += 1) {
      const node = Math.floor(rand() * model.count);
      const from = model.left[node] as number;
      const to = from + (model.total_[node] as number);
      // Values are whole numbers of a unit; narrower than this, 53 bits cannot tell the edges apart.
      if (to - from > model.total * 1e-9) yield { from, to, width };
      const a = rand() * model.total;
      const b = a + rand() ** 4 * (model.total - a) + model.total * 1e-9;
      yield { from: a, to: b, width };
    }
  }
}

const edges = (model: FlameModel, view: Window, node: number) => {
  const scale = view.width / (view.to - view.from);
  const left = ((model.left[node] as number) - view.from) * scale;
  return { left, right: left + (model.total_[node] as number) * scale };
};

function checkRows(model: FlameModel, view: Window, what: string): void {
  const list = new DisplayList();
  layoutRows(model, view, 0, model.depths, list);
  assert.equal(list.rowAt.length, model.depths + 1);
  for (let row = 0; row < model.depths; row += 1) {
    const begin = list.rowAt[row] as number;
    const end = list.rowAt[row + 1] as number;
    assert.ok(end - begin <= view.width, `${what}: a row has at most one rectangle a pixel`);
    const drawn = new Set<number>();
    let edge = 0;
    for (let rect = begin; rect < end; rect += 1) {
      const x0 = list.x0[rect] as number;
      const x1 = list.x1[rect] as number;
      assert.ok(x0 >= edge && x1 > x0 && x1 <= view.width, `${what}: rectangles do not overlap and lie inside`);
      edge = x1;
      const node = list.node[rect] as number;
      if (node >= 0) {
        const { left, right } = edges(model, view, node);
        assert.ok(
          Math.abs(x0 - Math.max(0, left)) <= 1 && Math.abs(x1 - Math.min(view.width, right)) <= 1,
          `${what}: a frame is drawn within a pixel of where it is`,
        );
        drawn.add(node);
      } else {
        for (let i = -1 - node; i < (list.runEnd[rect] as number); i += 1) {
          const inside = model.rowNodes[i] as number;
          const { left, right } = edges(model, view, inside);
          assert.ok(right - left < 1.5, `${what}: a run holds only frames below 1.5 pixels`);
          assert.ok(left >= x0 - 2 && right <= x1 + 2, `${what}: a run covers its frames`);
        }
      }
      // Hit = drawn, at both edges.
      for (const x of [x0, x1 - 1]) {
        assert.equal(hitRect(list, row, x), rect, what);
        const hit = nodeOfRect(model, list, rect);
        assert.equal(model.depth[hit], row);
        assert.ok(framesOfRect(list, rect) >= 1);
      }
    }
    for (let i = model.rowStart[row] as number; i < (model.rowStart[row + 1] as number); i += 1) {
      const node = model.rowNodes[i] as number;
      const { left, right } = edges(model, view, node);
      const visible = Math.min(view.width, right) - Math.max(0, left);
      if (right - left >= 1.5 && visible >= 1.5)
        assert.ok(drawn.has(node), `${what}: a frame of ${visible.toFixed(2)} pixels is drawn`);
    }
  }
}

test('no frame of 1.5 pixels is skipped, none overlaps, what is hit is what is drawn', () => {
  for (let seed = 1; seed <= 12; seed += 1) {
    const model = buildModel(randomAnswer(seed, 4000, seed % 2 === 0));
    for (const view of views(model, seed))
      checkRows(model, view, `seed ${seed}, ${view.from}..${view.to} in ${view.width}`);
  }
});

test('frames just above and below a pixel do not push their neighbours away', () => {
  for (const widths of [[1.2, 0.3], [0.9], [0.5, 0.6], [1.4, 0.2, 0.2], [0.99, 1.01], [3, 0.4]]) {
    const children = Array.from(
      { length: 600 },
      (_, i) => [`f${i}`, widths[i % widths.length] as number, []] as [string, number, []],
    );
    children.push(['wide', 300, []]);
    const model = buildModel(answerOf(['total', 0, children]));
    checkRows(model, { from: 0, to: model.total, width: Math.round(model.total) }, `widths ${widths}`);
  }
});

test('a row of a million slivers is looked at a pixel at a time', () => {
  const size = 200_000;
  const children = Array.from({ length: size }, (_, i) => [`f${i % 50}`, 1, []] as [string, number, []]);
  const model = buildModel(answerOf(['total', 0, children]));
  const looked = layoutRow(model, 1, { from: 0, to: model.total, width: 1000 }, new DisplayList());
  assert.ok(looked <= 1001, `${looked} frames looked at for 1000 pixels`);
});

test('nothing is hit beside the tree, and an empty view draws nothing', () => {
  const model = buildModel(answerOf(['total', 50, [['half', 50, []]]]));
  const list = new DisplayList();
  layoutRows(model, { from: 0, to: 100, width: 100 }, 0, 5, list);
  assert.equal(hitRect(list, 1, 49), 1);
  assert.equal(hitRect(list, 1, 50), -1);
  assert.equal(hitRect(list, 2, 10), -1);
  assert.equal(hitRect(list, -1, 10), -1);
  layoutRows(model, { from: 0, to: 0, width: 100 }, 0, 5, list);
  assert.equal(list.count, 0);
});
