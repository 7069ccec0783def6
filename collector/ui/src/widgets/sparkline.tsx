// A small line without axes; the figure beside it says how high it is.

const WIDTH = 180;
const HEIGHT = 22;

/** `most` is the value at the top; 0 lets the line fill the height. */
export function Sparkline({ values, label }: { values: readonly number[]; label: string }) {
  const most = Math.max(...values, 0);
  if (values.length < 2 || most <= 0)
    return <svg class="spark" width={WIDTH} height={HEIGHT} role="img" aria-label={`${label}: nothing`} />;
  const step = WIDTH / (values.length - 1);
  const points = values.map(
    (value, i) => `${(i * step).toFixed(1)},${(HEIGHT - 1.5 - (Math.max(0, value) / most) * (HEIGHT - 4)).toFixed(1)}`,
  );
  return (
    <svg class="spark" width={WIDTH} height={HEIGHT} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={label}>
      <path class="spark-area" d={`M0,${HEIGHT} L${points.join(' L')} L${WIDTH},${HEIGHT} Z`} />
      <path class="spark-line" d={`M${points.join(' L')}`} />
    </svg>
  );
}
