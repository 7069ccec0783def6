// A bar in a row of a table: its value against the largest one.

export function Meter({ value, most }: { value: number; most: number }) {
  return (
    <span class="meter">
      <span class="meter-fill" style={{ width: `${most > 0 ? Math.max(0.5, (value / most) * 100) : 0}%` }} />
    </span>
  );
}
