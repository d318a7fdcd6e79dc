import { PHASES, type ColdStartTimes } from "../api/types.ts";
import { millis } from "../design/format.ts";

/** Medians and 90th percentiles of every phase, per kind of cold start. */
export function Quantiles({ table }: { table: ColdStartTimes[] }) {
  const phases = PHASES.filter((phase) => table.some((row) => row.phases[phase]));
  return (
    <details className="fold">
      <summary>Usual times, p50 and p90</summary>
      <div className="scroll-x" tabIndex={0} role="region" aria-label="Usual times of cold starts">
        <table className="plain numbers">
          <thead>
            <tr>
              <th scope="col">on</th>
              <th scope="col" className="right">
                of
              </th>
              <th scope="col" className="right">
                total
              </th>
              {phases.map((phase) => (
                <th key={phase} scope="col" className="right">
                  {phase}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {table.map((row) => (
              <tr key={`${row.device_kind} ${row.standby}`}>
                <th scope="row">{row.standby ? `${row.device_kind}, from a standby` : row.device_kind}</th>
                <td className="right">{row.samples}</td>
                <Pair of={row.total} />
                {phases.map((phase) => (
                  <Pair key={phase} of={row.phases[phase]} />
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}

function Pair({ of }: { of: ColdStartTimes["total"] | undefined }) {
  return (
    <td className="right">
      {of ? (
        <>
          {millis(of.p50_ms)}
          <br />
          <span className="muted">{millis(of.p90_ms)}</span>
        </>
      ) : (
        "–"
      )}
    </td>
  );
}
