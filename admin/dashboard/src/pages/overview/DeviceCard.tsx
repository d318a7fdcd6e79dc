import { memo, type ReactNode } from "react";
import type { DeviceRow, ReplicaRow } from "../../api/types.ts";
import { shownState, StateMark } from "../../design/State.tsx";
import { mebibytes, percent } from "../../design/format.ts";
import { functionHash } from "../../route/hash.ts";
import { useDevice, useReplica } from "../../store/hooks.ts";
import { shortId } from "./devices.ts";
import { usePointed } from "./pointed.ts";
import "./overview.css";

/** A device with its memory and replicas. */
export const DeviceCard = memo(function DeviceCard({ id }: { id: string }) {
  const device = useDevice(id);
  if (!device) return null;
  const isOff = device.state === "quarantined" || device.state === "cordoned";
  return (
    <li className="device">
      <div className="device-head">
        <StateMark state={device.state} />
        <span className="device-name cut" title={device.id}>
          {device.name ?? shortId(device)}
        </span>
        {device.index !== null && <span className="muted small device-index">GPU {device.index}</span>}
        <span className="muted small cut device-id">{device.name ? shortId(device) : device.kind}</span>
        <span className="spread" />
        <Busy share={device.busy} />
      </div>
      <Memory device={device} />
      {isOff && (
        <p className="small state failing cut" title={device.reason}>
          {device.state}: {device.reason}
        </p>
      )}
      <ul className="chips" aria-label={`Replicas on ${device.id}`}>
        {[...device.replicas, ...device.parked].map((replica) => (
          <ReplicaChip key={replica} id={replica} device={id} />
        ))}
      </ul>
    </li>
  );
});

function Busy({ share }: { share: number | null }) {
  return (
    <span className="busy small" title="share of the last seconds with a model running">
      <span className="busy-track" aria-hidden="true">
        <span className="busy-fill" style={{ width: percent(share ?? 0) }} />
      </span>
      <span>{share === null ? "busy –" : `${percent(share)} busy`}</span>
    </span>
  );
}

/** Bar of the memory charged for replicas, with a line at the use that the driver reports; what parked replicas keep
 * is marked within it. */
function Memory({ device }: { device: DeviceRow }) {
  const total = device.total_mib ?? device.memory_mib;
  const part = (value: number) => `${Math.min(100, (value / Math.max(1, total)) * 100)}%`;
  const used = device.used_mib === null ? "" : `${mebibytes(device.used_mib)} used, `;
  const residue_mib = device.residue_mib ?? 0;
  const kept = residue_mib ? `, ${mebibytes(residue_mib)} kept by parked ones` : "";
  const words = `${used}${mebibytes(device.charged_mib)} charged of ${mebibytes(total)}${kept}`;
  return (
    <>
      <div className="memory" aria-hidden="true">
        {device.used_mib !== null && <span className="memory-used" style={{ width: part(device.used_mib) }} />}
        <span className="memory-charged" style={{ width: part(device.charged_mib) }} />
        {residue_mib > 0 && <span className="memory-residue" style={{ width: part(residue_mib) }} />}
      </div>
      <p className="small muted cut" title={words}>
        {words}
      </p>
    </>
  );
}

/** A replica; `device` is the one whose card this is. */
export const ReplicaChip = memo(function ReplicaChip({ id, device }: { id: string; device: string }) {
  const replica = useReplica(id);
  if (!replica) return null;
  const name = replica.function || replica.role;
  const count = replica.devices.length;
  const at = `${replica.devices.indexOf(device) + 1} of ${count}`;
  const trouble = replica.trouble ? ` but not answering: ${replica.trouble}` : "";
  const isParked = replica.residue_mib != null;
  const size = isParked ? `keeps ${mebibytes(replica.residue_mib)}` : mebibytes(replica.memory_mib);
  const words = `${replica.state}${trouble}, ${size}${count > 1 ? ` on each of ${count} GPUs` : ""}`;
  const inside = (
    <>
      <StateMark state={shownState(replica)} />
      <span className="cut">{replica.revision || name}</span>
      {count > 1 && <span className="chip-at">{at}</span>}
      <span className="unseen">{words}</span>
    </>
  );
  const title = `${replica.id}: ${words}`;
  const link = replica.function ? <a href={functionHash(replica.function)}>{inside}</a> : <span>{inside}</span>;
  if (count > 1) return <SpanningChip replica={replica} title={`${title}: ${replica.devices.join(", ")}`} inside={link} />;
  return (
    <li className="chip" title={title}>
      {link}
    </li>
  );
});

/** The chip of a replica on several devices: while it is pointed at or focused, all its chips are marked. */
function SpanningChip({ replica: { id }, title, inside }: { replica: ReplicaRow; title: string; inside: ReactNode }) {
  const [isPointed, point] = usePointed(id);
  return (
    <li
      className={`chip${isPointed ? " is-pointed" : ""}`}
      title={title}
      onPointerEnter={() => point(id)}
      onPointerLeave={() => point("")}
      onFocus={() => point(id)}
      onBlur={() => point("")}
    >
      {inside}
    </li>
  );
}
