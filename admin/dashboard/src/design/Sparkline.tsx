/** Line of a series of numbers without a scale: it shows the trend, not the amount. */
export function sparkPath(values: readonly number[], width: number, height: number): string {
  const top = Math.max(...values, 1e-9);
  const step = width / Math.max(1, values.length - 1);
  const point = (value: number, at: number) => `${(at * step).toFixed(1)} ${(height - 1 - (value / top) * (height - 2)).toFixed(1)}`;
  return values.length ? `M${values.map(point).join("L")}` : "";
}

/** `label` describes the line for screen readers. */
export function Sparkline({ values, width, height, label }: { values: readonly number[]; width: number; height: number; label: string }) {
  return (
    <svg className="spark" width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={label}>
      <path d={sparkPath(values, width, height)} fill="none" stroke="var(--accent)" strokeWidth="1.25" strokeLinejoin="round" />
    </svg>
  );
}
