// Draws a display list on a 2D canvas: one pass a colour, labels only where they can be read. Knows the DOM only as
// far as a canvas context.

import { cut } from '../names.ts';
import { type CanvasTheme, GROUPS, type Group, groupOf } from '../palette.ts';
import { DisplayList, layoutRows, type Window } from './layout.ts';
import { FLAG_INLINED, type FlameModel } from './model.ts';

/** Height of a row and least width of a label, CSS pixels. */
export const ROW_PX = 19;
export const LABEL_MIN_PX = 30;
const LABEL_PAD_PX = 5;
const FONT_PX = 11.5;
export const FONT_FAMILY = 'Inter, system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';

/** Lightness steps of a group's colour, by module: neighbours of different binaries can be told apart. */
const TINTS = 4;

/** What one drawing shows. Lengths in CSS pixels unless said otherwise. */
export interface Scene {
  readonly model: FlameModel;
  readonly theme: CanvasTheme;
  readonly ratio: number;
  readonly height: number;
  readonly window: Window;
  readonly scroll: number;
  /** The zoomed frame; its callers are dimmed. */
  readonly zoom: number;
  /** By function, null without a search. */
  readonly matches: Uint8Array | null;
}

/** Parses `#rrggbb`. */
function rgb(hex: string): [number, number, number] {
  const value = Number.parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

export function blend(a: string, b: string, part: number): string {
  const [ar, ag, ab] = rgb(a);
  const [br, bg, bb] = rgb(b);
  const mixed = [ar + (br - ar) * part, ag + (bg - ag) * part, ab + (bb - ab) * part];
  return `#${mixed.map((c) => Math.round(c).toString(16).padStart(2, '0')).join('')}`;
}

/** Colour slots: groups x tints, each plain and dimmed, then run, match, match dimmed, faded. */
const PLAIN = GROUPS.length * TINTS;
const SLOT_RUN = PLAIN * 2;
const SLOT_MATCH = SLOT_RUN + 1;
const SLOT_MATCH_DIM = SLOT_RUN + 2;
const SLOT_FADED = SLOT_RUN + 3;
const SLOTS = SLOT_RUN + 4;

function slotColours(theme: CanvasTheme): string[] {
  const colours = new Array<string>(SLOTS);
  GROUPS.forEach((group, g) => {
    for (let tint = 0; tint < TINTS; tint += 1) {
      const flat = group === 'marker' || group === 'hidden' || group === 'root' || group.startsWith('reason-');
      const step = flat ? 0 : (tint - (TINTS - 1) / 2) * 0.06;
      const colour = blend(theme.fills[group], step < 0 ? theme.background : theme.text, Math.abs(step));
      colours[g * TINTS + tint] = colour;
      colours[PLAIN + g * TINTS + tint] = blend(colour, theme.background, 0.45);
    }
  });
  colours[SLOT_RUN] = theme.run;
  colours[SLOT_MATCH] = theme.match;
  colours[SLOT_MATCH_DIM] = blend(theme.match, theme.background, 0.45);
  colours[SLOT_FADED] = theme.faded;
  return colours;
}

/** Widths of labels without asking the canvas each time: ASCII from a table, the rest measured once a character. */
class TextWidths {
  readonly #ascii = new Float32Array(128);
  readonly #others = new Map<string, number>();
  readonly #context: CanvasRenderingContext2D;

  constructor(context: CanvasRenderingContext2D) {
    this.#context = context;
    for (let c = 32; c < 127; c += 1) this.#ascii[c] = context.measureText(String.fromCharCode(c)).width;
  }

  #of(character: string): number {
    const code = character.charCodeAt(0);
    if (code < 128) return this.#ascii[code] as number;
    let width = this.#others.get(character);
    if (width === undefined) {
      width = this.#context.measureText(character).width;
      this.#others.set(character, width);
    }
    return width;
  }

  /** How many UTF-16 units of `text` fit into `room`; all of them if the text fits. */
  fitting(text: string, room: number): number {
    let width = 0;
    let at = 0;
    for (const character of text) {
      width += this.#of(character);
      if (width > room) return at;
      at += character.length;
    }
    return at;
  }
}

/** Draws scenes; keeps what is worth keeping between two drawings of the same model. */
export class FlameRenderer {
  readonly list = new DisplayList();
  readonly #context: CanvasRenderingContext2D;
  #model: FlameModel | null = null;
  #groups = new Uint8Array(0);
  #slots = new Uint16Array(0);
  #theme: CanvasTheme | null = null;
  #colours: string[] = [];
  #hatch: CanvasPattern | null = null;
  #ratio = 0;
  #widths: TextWidths | null = null;
  #short: (name: string, kind: string) => string;
  #shortNames: (string | undefined)[] = [];
  readonly #head = new Int32Array(SLOTS);
  #next = new Int32Array(0);

  constructor(canvas: HTMLCanvasElement, short: (name: string, kind: string) => string) {
    const context = canvas.getContext('2d', { alpha: false });
    if (!context) throw new Error('this browser has no 2D canvas');
    this.#context = context;
    this.#short = short;
  }

  draw(scene: Scene): void {
    this.#adopt(scene);
    const { model, ratio } = scene;
    const firstRow = Math.floor(scene.scroll / ROW_PX);
    const lastRow = Math.ceil((scene.scroll + scene.height) / ROW_PX);
    layoutRows(model, scene.window, firstRow, lastRow, this.list);
    const context = this.#context;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = scene.theme.background;
    context.fillRect(0, 0, scene.window.width, Math.ceil(scene.height * ratio));
    this.#fillRects(scene);
    this.#decorate(scene);
    this.#labels(scene);
  }

  #adopt({ model, theme, ratio }: Scene): void {
    if (theme !== this.#theme) {
      this.#theme = theme;
      this.#colours = slotColours(theme);
      this.#hatch = null;
    }
    if (ratio !== this.#ratio) {
      this.#ratio = ratio;
      this.#hatch = null;
      this.#widths = null;
    }
    this.#hatch ??= this.#makeHatch(theme, ratio);
    if (model !== this.#model) {
      this.#model = model;
      this.#shortNames = new Array<string | undefined>(model.functions.name.length);
      const { kind, module, name } = model.functions;
      this.#groups = Uint8Array.from(kind, (one, f) => GROUPS.indexOf(groupOf(one, module[f], name[f])));
      this.#slots = new Uint16Array(model.functions.kind.length);
      model.functions.module.forEach((module, f) => {
        let hash = 0;
        for (let i = 0; i < module.length; i += 1) hash = (Math.imul(hash, 31) + module.charCodeAt(i)) >>> 0;
        this.#slots[f] = (this.#groups[f] as number) * TINTS + (hash % TINTS);
      });
    }
  }

  /** Diagonal lines for frames whose kind nobody knows and for hidden ones. */
  #makeHatch(theme: CanvasTheme, ratio: number): CanvasPattern | null {
    const size = Math.max(4, Math.round(6 * ratio));
    const tile = document.createElement('canvas');
    tile.width = size;
    tile.height = size;
    const context = tile.getContext('2d');
    if (!context) return null;
    context.strokeStyle = theme.hatch;
    context.lineWidth = ratio;
    context.beginPath();
    for (const shift of [-size, 0, size]) {
      context.moveTo(shift, size);
      context.lineTo(shift + size, 0);
    }
    context.stroke();
    return this.#context.createPattern(tile, 'repeat');
  }

  /** Top of a row and height of a frame, device pixels. */
  #rowTop(scene: Scene, depth: number): number {
    return Math.round((depth * ROW_PX - scene.scroll) * scene.ratio);
  }

  #frameHeight(scene: Scene): number {
    return Math.round(ROW_PX * scene.ratio) - Math.max(1, Math.round(scene.ratio));
  }

  #slotOf(scene: Scene, node: number): number {
    if (node < 0) return SLOT_RUN;
    const { model, matches, zoom } = scene;
    const f = model.func[node] as number;
    const dimmed = node < zoom && (model.end[node] as number) >= (model.end[zoom] as number);
    if (matches) {
      if (matches[f] === 1) return dimmed ? SLOT_MATCH_DIM : SLOT_MATCH;
      return SLOT_FADED;
    }
    const slot = node === 0 ? GROUPS.indexOf('root') * TINTS : (this.#slots[f] as number);
    return dimmed ? PLAIN + slot : slot;
  }

  #fillRects(scene: Scene): void {
    const { list } = this;
    if (this.#next.length < list.count) this.#next = new Int32Array(list.node.length);
    this.#head.fill(-1);
    const rows = list.rowAt.length - 1;
    const tops = new Int32Array(rows);
    const rowOf = new Uint16Array(list.count);
    for (let row = 0; row < rows; row += 1) {
      tops[row] = this.#rowTop(scene, list.firstRow + row);
      rowOf.fill(row, list.rowAt[row], list.rowAt[row + 1]);
    }
    for (let i = list.count - 1; i >= 0; i -= 1) {
      const slot = this.#slotOf(scene, list.node[i] as number);
      this.#next[i] = this.#head[slot] as number;
      this.#head[slot] = i;
    }
    const context = this.#context;
    const height = this.#frameHeight(scene);
    for (let slot = 0; slot < SLOTS; slot += 1) {
      let i = this.#head[slot] as number;
      if (i < 0) continue;
      context.fillStyle = this.#colours[slot] as string;
      for (; i >= 0; i = this.#next[i] as number) {
        const x0 = list.x0[i] as number;
        const width = (list.x1[i] as number) - x0;
        // One pixel between frames, but not where it would eat most of them.
        context.fillRect(x0, tops[rowOf[i] as number] as number, width > 3 ? width - 1 : width, height);
      }
    }
  }

  /** Stripes of kernel frames, hatching of unknown and hidden ones, edges of markers: never colour alone. */
  #decorate(scene: Scene): void {
    const { list } = this;
    const { model, theme, ratio, matches } = scene;
    const context = this.#context;
    const height = this.#frameHeight(scene);
    const stripe = Math.round(2 * ratio);
    const kernel = GROUPS.indexOf('kernel');
    const marker = GROUPS.indexOf('marker');
    const firstReason = GROUPS.indexOf('reason-lock');
    const hatched: Group[] = ['unknown', 'hidden'];
    const hatchedGroups = hatched.map((group) => GROUPS.indexOf(group));
    for (const pass of ['stripe', 'hatch', 'marker'] as const) {
      if (pass === 'hatch' && !this.#hatch) continue;
      context.fillStyle =
        pass === 'stripe' ? theme.stripe : pass === 'hatch' ? (this.#hatch as CanvasPattern) : theme.markerEdge;
      for (let row = 0; row + 1 < list.rowAt.length; row += 1) {
        const top = this.#rowTop(scene, list.firstRow + row);
        for (let i = list.rowAt[row] as number; i < (list.rowAt[row + 1] as number); i += 1) {
          const node = list.node[i] as number;
          if (node <= 0) continue;
          const x0 = list.x0[i] as number;
          const width = (list.x1[i] as number) - x0;
          if (width < 2 * stripe) continue;
          const group = this.#groups[model.func[node] as number] as number;
          if (pass === 'stripe') {
            if (group === kernel && (!matches || matches[model.func[node] as number] === 1))
              context.fillRect(x0, top, stripe, height);
          } else if (pass === 'hatch') {
            if (hatchedGroups.includes(group)) context.fillRect(x0, top, width - 1, height);
          } else if (group === marker || group >= firstReason) {
            const line = Math.max(1, Math.round(ratio));
            context.fillRect(x0, top, width - 1, line);
            context.fillRect(x0, top + height - line, width - 1, line);
          }
        }
      }
    }
  }

  #labels(scene: Scene): void {
    const { list } = this;
    const { model, theme, ratio, matches } = scene;
    const context = this.#context;
    context.font = `${FONT_PX * ratio}px ${FONT_FAMILY}`;
    // Neither kerning nor ligatures: widths are sums of characters, and 0x stays 0x.
    context.fontKerning = 'none';
    context.textRendering = 'optimizeSpeed';
    context.textBaseline = 'middle';
    this.#widths ??= new TextWidths(context);
    const least = LABEL_MIN_PX * ratio;
    const pad = LABEL_PAD_PX * ratio;
    const middle = this.#frameHeight(scene) / 2 + 0.5 * ratio;
    const hidden = model.hiddenFunc;
    for (let row = 0; row + 1 < list.rowAt.length; row += 1) {
      const top = this.#rowTop(scene, list.firstRow + row);
      for (let i = list.rowAt[row] as number; i < (list.rowAt[row + 1] as number); i += 1) {
        const x0 = list.x0[i] as number;
        const room = (list.x1[i] as number) - x0 - 2 * pad;
        const node = list.node[i] as number;
        if (node < 0 || room + 2 * pad < least) continue;
        const f = model.func[node] as number;
        const text = this.#fit(node, f, room);
        if (text === '') continue;
        const slot = this.#slotOf(scene, node);
        context.fillStyle =
          slot === SLOT_MATCH
            ? theme.matchText
            : matches && slot === SLOT_FADED
              ? theme.fadedText
              : f === hidden || !model.functions.named[f] || (slot >= PLAIN && slot < SLOT_RUN)
                ? theme.textMuted
                : theme.text;
        context.fillText(text, x0 + pad, top + middle);
      }
    }
  }

  /** The label of a frame: its name, its shorter name, or as much of that as fits. */
  #fit(node: number, f: number, room: number): string {
    const model = this.#model as FlameModel;
    const widths = this.#widths as TextWidths;
    const mark = ((model.flags[node] as number) & FLAG_INLINED) !== 0 ? '↳ ' : '';
    const full = mark + (model.functions.name[f] as string);
    if (widths.fitting(full, room) === full.length) return full;
    const short =
      mark +
      (this.#shortNames[f] ??= this.#short(model.functions.name[f] as string, model.functions.kind[f] as string));
    const units = widths.fitting(short, room);
    if (units === short.length) return short;
    return units < 3 ? '' : cut(short, units);
  }
}
