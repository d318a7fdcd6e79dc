import { memo } from "react";
import type { PrecisionReport } from "../../api/types.ts";
import { bytes, mebibytes, plural } from "../../design/format.ts";
import { figures, type Measured, measured, percent, place, SCALE, short, small } from "./precision.ts";

const WIDTH = 150;
const HEIGHT = 10;
/** The style sheet makes bars narrower on a phone. */
const BOX = { width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none" };

/** The candidates of other precision that the deploy measured: time per row, and agreement with the original. */
export const PrecisionPanel = memo(function PrecisionPanel({ report }: { report: PrecisionReport }) {
  const { chosen, tolerance, judged, calibrated, source } = report;
  return (
    <section className="panel precision-panel" aria-labelledby="precision-title">
      <div className="panel-head">
        <h2 id="precision-title">Precision</h2>
        <span className="tag good">{chosen} serves</span>
      </div>
      <div className="scroll-x" tabIndex={0} role="region" aria-label="Candidates of other precision">
        <table className="plain precision">
          <thead>
            <tr>
              <th scope="col">candidate</th>
              <th scope="col">time per row</th>
              <th scope="col">disagreement</th>
              <th scope="col" className="right">
                memory
              </th>
              <th scope="col" className="right">
                file
              </th>
            </tr>
          </thead>
          <tbody>
            {measured(report).map((one) => (
              <Row key={one.candidate.name} one={one} tolerance={tolerance} />
            ))}
          </tbody>
        </table>
      </div>
      <p className="panel-body small muted">
        Judged by {plural(judged, source === "samples" ? "sample" : "random input")}
        {calibrated > 0 && `; ${calibrated} others calibrated`}. Tolerance {tolerance}: the tick on the bars.
      </p>
    </section>
  );
});

function Row({ one, tolerance }: { one: Measured; tolerance: number }) {
  const { candidate, isChosen } = one;
  const { column } = candidate;
  // The reason against a candidate has the figures of a column that is not within the tolerance.
  const within = column && column.error <= column.error_max ? column : null;
  return (
    <>
      <tr className={isChosen ? "has-traffic" : ""}>
        <th scope="row">
          <span className="mono">{candidate.name}</span>
          {candidate.batchable === false && <div className="small muted">not batched</div>}
        </th>
        <td>
          <Time one={one} />
        </td>
        <td>
          <Disagreement one={one} tolerance={tolerance} />
        </td>
        <td className="right">{mebibytes(candidate.memory_mib)}</td>
        <td className="right">{candidate.file_bytes === undefined ? "–" : bytes(candidate.file_bytes)}</td>
      </tr>
      {(candidate.why_not || within) && (
        <tr className="precision-why">
          <td colSpan={5}>
            {candidate.why_not && <p className="small muted">{candidate.why_not}</p>}
            {within && <p className="small muted">{figures(within)}</p>}
          </td>
        </tr>
      )}
    </>
  );
}

function Time({ one: { best, time, gain, isChosen } }: { one: Measured }) {
  if (!best) return <span className="muted">not measured</span>;
  const words = `${short(best.ms)} at ${plural(best.rows, "row")}${gain === null ? "" : `, ${gain.toFixed(2)} times as fast`}`;
  return (
    <>
      <svg className={isChosen ? "bars is-chosen" : "bars"} {...BOX} role="img" aria-label={words}>
        <rect className="back" width={WIDTH} height={HEIGHT} rx="2" />
        <rect className="front" width={Math.max(2, time * WIDTH)} height={HEIGHT} rx="2" />
      </svg>
      <span className="small" aria-hidden="true">
        {words.replace(" times as fast", "×")}
      </span>
    </>
  );
}

function Disagreement({ one: { candidate, off, reach }, tolerance }: { one: Measured; tolerance: number }) {
  if (off === null) return <span className="muted">{candidate.name === "original" ? "–" : "not judged"}</span>;
  const { same_label, cosine, column } = candidate;
  const parts = [
    ...(column === undefined ? [] : [`${place(column)} ${percent(column.error)}`]),
    ...(same_label === undefined ? [] : [`labels ${small(1 - same_label)}`]),
    ...(cosine === undefined ? [] : [`1 − cosine ${small(Math.max(0, 1 - cosine))}`]),
  ].join(", ");
  const at = WIDTH / SCALE;
  return (
    <>
      <svg
        className={off > tolerance ? "bars is-off" : "bars is-within"}
        {...BOX}
        role="img"
        aria-label={`${parts}; ${off > tolerance ? "above" : "within"} the tolerance`}
      >
        <title>{column ? figures(column) : `largest difference ${candidate.largest_difference ?? "unknown"}`}</title>
        <rect className="back" width={WIDTH} height={HEIGHT} rx="2" />
        <rect className="front" width={off > 0 ? Math.max(2, reach * WIDTH) : 0} height={HEIGHT} rx="2" />
        <line className="tick" x1={at} x2={at} y1={0} y2={HEIGHT} />
      </svg>
      <span className="small" aria-hidden="true">
        {parts}
      </span>
    </>
  );
}
