// A frame in words: for the tooltip, the detail line and the screen reader.

import { amount, isLow, samplesOf } from '../figures.ts';
import { count, share } from '../format.ts';
import { type Group, groupOf, isReason, kindName, REASON_LABEL, reasonName } from '../palette.ts';
import { FLAG_INLINED, type FlameModel } from './model.ts';

export interface Description {
  readonly name: string;
  readonly module: string;
  readonly source: string;
  /** Module and source in one line. */
  readonly place: string;
  readonly kind: string;
  readonly group: Group;
  readonly inlined: boolean;
  readonly hidden: boolean;
  readonly total: string;
  readonly self: string;
  readonly ofTotal: string;
  readonly ofParent: string;
  readonly samples: string;
  readonly low: boolean;
  readonly spoken: string;
}

export function describe(model: FlameModel, node: number, zoom: number, type: string): Description {
  const f = model.func[node] as number;
  const { functions } = model;
  const total = model.total_[node] as number;
  const self = model.self[node] as number;
  const parent = model.parent[node] as number;
  const low = isLow(total, model);
  const approximately = low ? '~' : '';
  const why = node !== 0 && isReason(functions.kind[f] as string, functions.module[f] as string);
  const module = why ? '' : (functions.module[f] as string);
  const file = functions.file[f] as string;
  const line = functions.line[f] as number;
  const source = file === '' ? '' : line > 0 ? `${file}:${line}` : file;
  const samples = samplesOf(total, model);
  const hidden = f === model.hiddenFunc;
  const name = node === 0 ? 'total' : (functions.name[f] as string);
  const kind =
    node === 0
      ? 'everything'
      : hidden
        ? 'left out of this answer'
        : why
          ? `why it waited: ${reasonName(name)}`
          : kindName(functions.kind[f] as string);
  const totalText = approximately + amount(total, model, type);
  const ofTotal = `${approximately}${share(total, model.total)} of total`;
  return {
    name,
    module,
    source,
    place: [module, source].filter((part) => part !== '').join(' · '),
    kind,
    group: node === 0 ? 'root' : groupOf(functions.kind[f] as string, why ? REASON_LABEL : '', name),
    inlined: ((model.flags[node] as number) & FLAG_INLINED) !== 0,
    hidden,
    total: totalText,
    self: `${amount(self, model, type)}`,
    ofTotal,
    ofParent: parent < 0 ? '' : `${share(total, model.total_[parent] as number)} of its caller`,
    samples: samples === null ? '' : `${count(samples)} samples`,
    low,
    spoken: `${name}, ${kind}, ${totalText}, ${ofTotal}, level ${(model.depth[node] as number) + 1} of ${model.depths}${node === zoom ? ', zoomed' : ''}`,
  };
}
