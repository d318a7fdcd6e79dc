import { bytes, millis } from "../design/format.ts";
import { Legend, phaseColour, PhaseBar } from "../receipts/PhaseBar.tsx";
import { bars, type Score } from "./answer.ts";
import type { Outcome } from "./call.ts";
import type { Receipt } from "./receipt.ts";

/** Result of a call. */
export function OutcomeView({ outcome }: { outcome: Outcome }) {
  const { status, problem, receipt, shown } = outcome;
  return (
    <div className="outcome">
      <p className="row-of">
        <b className={problem ? "outcome-status bad" : "outcome-status good"}>{status || "no answer"}</b>
        <span>{millis(outcome.ms)}</span>
        {outcome.size > 0 && <span className="muted">{bytes(outcome.size)}</span>}
        {outcome.revision && <span className="tag mono">{outcome.revision}</span>}
        {receipt?.cold && <span className="tag">cold start on {receipt.cold.split(" on ").at(-1)}</span>}
        {outcome.applied && <span className="tag">{outcome.applied}</span>}
        <RequestId id={outcome.request_id} />
      </p>
      <ProblemNote problem={problem} />
      {receipt && <ReceiptBar receipt={receipt} />}
      {shown.top.map((row, at) => (
        <TopLabels key={at} row={row} title={shown.top.length > 1 ? `Row ${at + 1}` : ""} />
      ))}
      {shown.text && (
        <details className="fold" open={shown.top.length === 0}>
          <summary>{problem ? "The whole problem" : outcome.type || "Answer"}</summary>
          <pre className="outcome-text" tabIndex={0} role="region" aria-label="The answer's body">
            {shown.text}
          </pre>
          {shown.cut > 0 && <p className="small muted">… and {bytes(shown.cut)} more that are not shown.</p>}
        </details>
      )}
    </div>
  );
}

/** The receipt as one bar with a legend. */
export function ReceiptBar({ receipt }: { receipt: Receipt }) {
  const total = receipt.totalMs || 1;
  let from = 0;
  const pieces = receipt.parts
    .filter((part) => part.ms > 0)
    .map((part) => {
      const share = part.ms / total;
      const piece = { name: part.name, colour: colourOf(part), from, share };
      from += share;
      return piece;
    });
  const keys = receipt.parts.map((part) => ({ name: part.name, colour: colourOf(part), text: exact(part.ms) }));
  return (
    <div className="stack outcome-receipt">
      <PhaseBar pieces={pieces} height={12} />
      <Legend keys={keys} />
      <p className="small muted">
        {exact(receipt.totalMs)} inside the server
        {receipt.replica && ` · replica ${receipt.replica}`}
        {receipt.rows && ` · in a run of ${receipt.rows.replace(/^1 rows$/, "1 row")}`}
      </p>
    </div>
  );
}

/** Server-Timing has microseconds, which a warm call needs. */
function exact(ms: number): string {
  if (ms === 0) return "0";
  return ms < 1 ? `${ms.toFixed(3)} ms` : millis(ms);
}

function colourOf(part: Receipt["parts"][number]): string {
  return part.isPhase ? phaseColour(part.name) : `var(--part-${part.name.startsWith("first_") ? "compute" : part.name})`;
}

function TopLabels({ row, title }: { row: Score[]; title: string }) {
  const shares = bars(row);
  return (
    <table className="top" aria-label={title ? `Best labels of ${title.toLowerCase()}` : "Best labels"}>
      {title && <caption>{title}</caption>}
      <tbody>
        {row.map(({ label, score }, at) => (
          <tr key={at}>
            <th scope="row">{label}</th>
            <td className="top-bar" aria-hidden="true">
              <svg viewBox="0 0 100 10" preserveAspectRatio="none" width="100%" height="10">
                <rect width={Math.max(0.4, (shares[at] ?? 0) * 100)} height="10" />
              </svg>
            </td>
            <td className="right">{Math.abs(score) <= 1 ? score.toFixed(4) : score.toPrecision(5)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Text of a problem document; nothing for null. */
export function ProblemNote({ problem }: Pick<Outcome, "problem">) {
  if (!problem) return null;
  return (
    <p className="note bad">
      <b>{problem.title || problem.code}</b>
      {problem.detail && `: ${problem.detail}`}
    </p>
  );
}

/** The X-Request-Id of an answer; nothing for "". */
export function RequestId({ id }: { id: string }) {
  if (!id) return null;
  return (
    <span className="small muted">
      X-Request-Id <span className="mono">{id}</span>
    </span>
  );
}
