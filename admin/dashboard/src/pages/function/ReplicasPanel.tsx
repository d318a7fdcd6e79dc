import { useMemo } from "react";
import { COMING, PHASES, type ReplicaRow } from "../../api/types.ts";
import { ago, countdown, mebibytes, millis, span } from "../../design/format.ts";
import { shownState, StateText } from "../../design/State.tsx";
import { phaseColour, PhaseBar } from "../../receipts/PhaseBar.tsx";
import { length_ms, segments, sentence } from "../../receipts/waterfall.ts";
import { useSecond } from "../../store/clock.ts";
import { useActivity, useReplicasVersion, useSite } from "../../store/hooks.ts";
import { shortId } from "../overview/devices.ts";
import { endOf } from "./recent.ts";

/** The function's replicas, and the last ended ones with the reason. */
export function ReplicasPanel({ name }: { name: string }) {
  const { store } = useSite();
  const version = useReplicasVersion();
  useSecond();
  const replicas = useMemo(
    () => [...store.replicas.values()].filter((replica) => replica.function === name),
    [store, name, version],
  );
  const { departed: gone, decisions } = useActivity(name);
  const now_s = store.serverNow_s();
  return (
    <section className="panel" aria-labelledby="replicas-title">
      <div className="panel-head">
        <h2 id="replicas-title">Replicas</h2>
        <span className="tag">{replicas.length}</span>
      </div>
      {replicas.length + gone.length === 0 && <p className="panel-body muted">None. The function uses no device.</p>}
      <ul className="replicas">
        {replicas.map((replica) => (
          <li key={replica.id}>
            <div className="row-of">
              <StateText state={shownState(replica)} word={replica.state} />
              <span className="mono">{replica.id}</span>
              {replica.role !== "serve" && <span className="tag">{replica.role}</span>}
              {replica.adopted && <span className="tag">adopted</span>}
              <span className="spread" />
              <span className="muted small">{span(Math.max(0, now_s - replica.since_s))}</span>
            </div>
            <p className="small muted">
              {placeOf(replica)} · limit {replica.limit} · {replica.revision}
            </p>
            {replica.devices.length > 1 && <DeviceNames ids={replica.devices} />}
            {replica.trouble && <p className="small is-trouble">not answering: {replica.trouble}</p>}
            {replica.residue_mib != null && <p className="small">{parkOf(replica, now_s)}</p>}
            {replica.why && <p className="small">{replica.why}</p>}
            <Phases replica={replica} />
          </li>
        ))}
        {gone.map(({ replica, at_s }) => (
          <li key={`gone ${replica.id}`} className="is-gone">
            <div className="row-of">
              <span className="mono">{replica.id}</span>
              <span className="muted">gone {ago(now_s - at_s)}</span>
            </div>
            <p className="small">{endOf(replica.id, decisions) || replica.why}</p>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** A replica's device with its memory there: "GPU-1f · 20 GiB", or "4 GPUs · 20 GiB on each". */
function placeOf({ device, devices, memory_mib }: ReplicaRow): string {
  const size = mebibytes(memory_mib);
  return devices.length > 1 ? `${devices.length} GPUs · ${size} on each` : `${device} · ${size}`;
}

/** What a parked replica keeps: "keeps 320 MiB of GPU-1f and 20 GiB of host memory, stopped in 23 h". */
function parkOf({ device, devices, residue_mib, host_mib, ends_s }: ReplicaRow, now_s: number): string {
  const where = devices.length > 1 ? `each of ${devices.length} GPUs` : device;
  const until = ends_s ? `, stopped in ${countdown(ends_s - now_s)}` : "";
  return `keeps ${mebibytes(residue_mib)} of ${where} and ${mebibytes(host_mib)} of host memory${until}`;
}

/** The devices of a replica that has several, in the order in which its program numbers them. */
function DeviceNames({ ids }: { ids: readonly string[] }) {
  const { store } = useSite();
  return (
    <ol className="replica-devices small muted" aria-label="GPUs of this replica">
      {ids.map((id) => {
        const device = store.devices.get(id);
        const index = device?.index ?? null;
        return (
          <li key={id} className="cut" title={id}>
            {index === null ? "" : `GPU ${index} · `}
            <span className="mono">{device ? shortId(device) : id}</span>
          </li>
        );
      })}
    </ol>
  );
}

function Phases({ replica }: { replica: ReplicaRow }) {
  const total_ms = length_ms({ phases: replica.phases, total_ms: 0 });
  if (total_ms <= 0) return null;
  const pieces = segments(replica.phases, total_ms).map(({ phase, from, share }) => ({
    name: phase,
    colour: phaseColour(phase),
    from,
    share,
  }));
  const longest = PHASES.reduce((a, b) => ((replica.phases[b] ?? 0) > (replica.phases[a] ?? 0) ? b : a));
  const words = sentence(replica.phases);
  const isComing = COMING.includes(replica.state);
  return (
    <div className="replica-phases" title={words}>
      <PhaseBar pieces={pieces} height={6} />
      <span className="small muted">
        {isComing ? `${millis(total_ms)} so far` : `woke in ${millis(total_ms)}`}, {longest}{" "}
        {millis(replica.phases[longest])}
        <span className="unseen">: {words}</span>
      </span>
    </div>
  );
}
