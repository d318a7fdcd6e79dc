import { useMemo } from "react";
import { StateText } from "../../design/State.tsx";
import { mebibytes, millis, plural } from "../../design/format.ts";
import { useIsNarrow } from "../../design/narrow.ts";
import { hostHash } from "../../route/hash.ts";
import { useDevicesVersion, useHost, useHostsVersion, useSite } from "../../store/hooks.ts";
import { useSecond } from "../../store/clock.ts";
import { DeviceCard, ReplicaChip } from "./DeviceCard.tsx";
import { groupsOf, isKept, ownLabels, troubleOf, type DeviceGroup } from "./devices.ts";
import { useSums } from "./Totals.tsx";

const KEPT_SHOWN = 30;

/** All devices with their replicas, by host if there are several. Collapsed in narrow windows. */
export function Devices() {
  const groups = useGroups();
  const { busy, devices } = useSums();
  const isNarrow = useIsNarrow();
  const isOne = groups.length < 2;
  return (
    <details className="panel devices" open={!isNarrow}>
      <summary className="panel-head">
        <h2>Devices</h2>
        <span className="muted">
          {plural(devices, "device")}, {busy} busy{isOne ? "" : `, ${plural(groups.length, "host")}`}
        </span>
      </summary>
      {isOne ? (
        <>
          {groups[0] && <Kept host={groups[0].host} />}
          <DeviceList name="Devices" ids={groups[0]?.ids ?? []} />
        </>
      ) : (
        groups.map((group) => <HostGroup key={group.host} {...group} />)
      )}
    </details>
  );
}

/** The devices by host; the hosts and devices that exist, whatever their figures. */
export function useGroups(): DeviceGroup[] {
  const { store } = useSite();
  const devices = useDevicesVersion();
  const hosts = useHostsVersion();
  // The maps are mutated in place: the versions show when.
  return useMemo(() => groupsOf(store.devices.values(), store.hosts.values()), [store, devices, hosts]);
}

export function DeviceList({ name, ids }: { name: string; ids: readonly string[] }) {
  return (
    <ul className="device-list" aria-label={name}>
      {ids.map((id) => (
        <DeviceCard key={id} id={id} />
      ))}
    </ul>
  );
}

/** Idle replicas that a host keeps in its memory, without a CPU slot. Read once a second: which slots are taken
 * changes with every call. */
function Kept({ host }: { host: string }) {
  const { store } = useSite();
  useSecond();
  const kept = [...store.replicas.values()].filter((one) => one.host === host && isKept(one, store.devices));
  if (!kept.length) return null;
  const size = mebibytes(kept.reduce((sum, one) => sum + one.memory_mib, 0));
  return (
    <div className="kept">
      <p className="small muted">
        {plural(kept.length, "idle replica")} kept in memory, {size}, without a CPU slot
      </p>
      <ul className="chips" aria-label="Replicas kept in memory">
        {kept.slice(0, KEPT_SHOWN).map((one) => (
          <ReplicaChip key={one.id} id={one.id} device={one.device} />
        ))}
        {kept.length > KEPT_SHOWN && <li className="small muted">and {kept.length - KEPT_SHOWN} more</li>}
      </ul>
    </div>
  );
}

function HostGroup({ host: name, ids }: DeviceGroup) {
  const host = useHost(name);
  const trouble = host ? troubleOf(host) : "";
  const facts = host
    ? [
        host.rtt_ms === null ? "" : millis(host.rtt_ms),
        host.disk_free_mib === null ? "" : `${mebibytes(host.disk_free_mib)} free`,
        ...ownLabels(host.labels),
      ].filter(Boolean)
    : [];
  return (
    <section className="host-group" aria-label={`Host ${name}`}>
      <div className="host-head">
        <h3 className="cut">
          <a href={hostHash(name)}>{name}</a>
        </h3>
        <StateText state={host?.state ?? "joining"} />
        <span className="spread" />
        <span className="muted small">{plural(ids.length, "device")}</span>
      </div>
      {facts.length > 0 && <p className="small muted cut">{facts.join(" · ")}</p>}
      {host?.transfer && <p className="small cut">{host.transfer}</p>}
      {trouble && (
        <p className={`small clamp${host?.state === "up" ? "" : " host-trouble"}`} title={trouble}>
          {trouble}
        </p>
      )}
      <Kept host={name} />
      <DeviceList name={`Devices of ${name}`} ids={ids} />
    </section>
  );
}
