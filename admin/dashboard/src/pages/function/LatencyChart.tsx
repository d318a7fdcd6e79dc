import { millis } from "../../design/format.ts";

const WIDTH = 216;
const HEIGHT = 46;
const FOOT = 13;

/** Latency of one run by rows: one bar per batch size that the deploy measured. `knee` is the size in use. */
export function LatencyChart({ latency_ms, knee }: { latency_ms: Record<string, number>; knee: number }) {
  const tried = Object.entries(latency_ms)
    .map(([rows, ms]) => ({ rows: Number(rows), ms }))
    .sort((a, b) => a.rows - b.rows);
  const most = Math.max(...tried.map(({ ms }) => ms), 1e-9);
  const step = Math.min(30, WIDTH / Math.max(1, tried.length));
  const words = tried.map(({ rows, ms }) => `${rows} ${rows === 1 ? "row" : "rows"} ${millis(ms)}`).join(", ");
  if (!tried.length) return <span className="muted">not measured</span>;
  return (
    <svg
      className="latency"
      width={step * tried.length}
      height={HEIGHT + FOOT}
      viewBox={`0 0 ${step * tried.length} ${HEIGHT + FOOT}`}
      role="img"
      aria-label={`Latency per run: ${words}`}
    >
      {tried.map(({ rows, ms }, at) => {
        const height = Math.max(2, (ms / most) * HEIGHT);
        return (
          <g key={rows} className={rows === knee ? "is-knee" : ""}>
            <title>{`${rows} rows: ${millis(ms)}, ${millis(ms / rows)} a row`}</title>
            <rect x={at * step + 2} y={HEIGHT - height} width={step - 4} height={height} rx="1.5" />
            <text x={at * step + step / 2} y={HEIGHT + FOOT - 2} textAnchor="middle">
              {rows}
            </text>
          </g>
        );
      })}
    </svg>
  );
}
