import { memo } from "react";
import type { FunctionDetail, Profile, RevisionRow } from "../../api/types.ts";
import { ago, bytes, mebibytes, millis } from "../../design/format.ts";
import { useSite } from "../../store/hooks.ts";
import { LatencyChart } from "./LatencyChart.tsx";

/** All revisions with the measurements of their deploys, newest first. */
export const RevisionsPanel = memo(function RevisionsPanel({
  detail,
  whyNot,
  onRollback,
}: {
  detail: FunctionDetail;
  /** Why this key may not roll back; "" if it may. */
  whyNot: string;
  onRollback: (to: number) => void;
}) {
  const isServer = detail.signature.kind === "http";
  const newest = [...detail.revisions].sort((a, b) => b.number - a.number);
  return (
    <section className="panel" aria-labelledby="revisions-title">
      <div className="panel-head">
        <h2 id="revisions-title">Revisions</h2>
      </div>
      <div className="scroll-x" tabIndex={0} role="region" aria-label="Revisions and their profiles">
        <table className="plain revisions">
          <thead>
            <tr>
              <th scope="col">revision</th>
              <th scope="col">engine</th>
              <th scope="col" className="right">
                size
              </th>
              <th scope="col" className="right">
                {isServer ? "start" : "load"}
              </th>
              <th scope="col" className="right">
                memory
              </th>
              {!isServer && (
                <>
                  <th scope="col">latency by batch</th>
                  <th scope="col">batching</th>
                  <th scope="col">prepared</th>
                </>
              )}
              <th scope="col">
                <span className="unseen">action</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {newest.map((revision) => (
              <Row
                key={revision.number}
                name={detail.name}
                revision={revision}
                isServer={isServer}
                whyNot={whyNot}
                onRollback={onRollback}
              />
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
});

function Row({
  name,
  revision,
  isServer,
  whyNot,
  onRollback,
}: {
  name: string;
  revision: RevisionRow;
  /** A server is not measured by batch, and not prepared. */
  isServer: boolean;
  whyNot: string;
  onRollback: (to: number) => void;
}) {
  const { store } = useSite();
  const { number, profile, traffic } = revision;
  return (
    <tr className={traffic ? "has-traffic" : ""}>
      <th scope="row">
        <span className="mono">
          {name}@{number}
        </span>
        {traffic && <span className="tag good">traffic</span>}
        <br />
        <span className="small muted">{ago(store.serverNow_s() - revision.created_s)}</span>
      </th>
      <td>
        {revision.compilation?.engine ?? revision.engine}
        {revision.handler && <span className="muted"> + {revision.handler}</span>}
      </td>
      <td className="right">{bytes(revision.size)}</td>
      <td className="right">{millis(profile?.load_ms)}</td>
      <td className="right">{mebibytes(profile?.memory_mib)}</td>
      {!isServer && (
        <>
          <td>{profile ? <LatencyChart latency_ms={profile.latency_ms} knee={revision.batch_max} /> : "–"}</td>
          <td className="revision-words">{revision.batching}</td>
          <td className="revision-words">{profile ? preparedOf(profile) : "–"}</td>
        </>
      )}
      <td className="right">
        {!traffic && (
          <button
            className="button"
            type="button"
            disabled={whyNot !== ""}
            title={whyNot}
            aria-label={`Roll back to ${name}@${number}`}
            onClick={() => onRollback(number)}
          >
            Roll back
          </button>
        )}
      </td>
    </tr>
  );
}

/** The gain of the preparation at load, as "load 240 → 2 ms", or why there is none. */
export function preparedOf({ prepared, why_not_prepared }: Profile): string {
  if (!prepared) return why_not_prepared ? `no: ${why_not_prepared}` : "no";
  const before = prepared.original.load_ms + prepared.original.first_ms;
  const now = prepared.quick.load_ms + prepared.quick.first_ms;
  const gain = now > 0 ? ` (${(before / now).toFixed(before / now < 10 ? 1 : 0)}×)` : "";
  return `first answer ${millis(before)} → ${millis(now)}${gain}${prepared.fast ? ", then a faster session" : ""}`;
}
