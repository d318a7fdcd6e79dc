import { LOCAL, type DeviceRow, type HostRow, type ReplicaRow } from "../../api/types.ts";

const collator = new Intl.Collator("en", { numeric: true });

/** A host's devices. */
export interface DeviceGroup {
  host: string;
  ids: string[];
}

/** The devices by host, the server's own machine first. A host without devices has an empty group. */
export function groupsOf(devices: Iterable<DeviceRow>, hosts: Iterable<HostRow>): DeviceGroup[] {
  const groups = new Map<string, string[]>();
  for (const { name } of hosts) groups.set(name, []);
  for (const device of devices) {
    const ids = groups.get(device.host);
    if (ids) ids.push(device.id);
    else groups.set(device.host, [device.id]);
  }
  return [...groups]
    .map(([host, ids]) => ({ host, ids: ids.sort(collator.compare) }))
    .sort((a, b) => Number(b.host === LOCAL) - Number(a.host === LOCAL) || collator.compare(a.host, b.host));
}

/** A device's id on its host: "gpu2/GPU-1f" is "GPU-1f" there. */
export function shortId({ id, host }: Pick<DeviceRow, "id" | "host">): string {
  return id.startsWith(`${host}/`) ? id.slice(host.length + 1) : id;
}

/** Whether an idle replica is kept in a host's memory alone: it has no CPU slot until it is called. */
export function isKept(replica: ReplicaRow, devices: ReadonlyMap<string, Pick<DeviceRow, "kind" | "replicas">>): boolean {
  const last = devices.get(replica.device);
  return replica.state === "ready" && last?.kind === "cpu" && !last.replicas.includes(replica.id);
}

/** The problem of a host; "" for none. */
export function troubleOf(host: Pick<HostRow, "state" | "reason" | "agent">): string {
  return [host.reason, agentOf(host)].filter(Boolean).join("; ");
}

/** Why a host that is reached does not report its GPUs and disk; "" if it does, or is away. */
export function agentOf({ state, agent }: Pick<HostRow, "state" | "agent">): string {
  return state === "up" || state === "draining" ? agent : "";
}

/** The labels of the operator as "disk=nvme". */
export function ownLabels(labels: Record<string, string>): string[] {
  return Object.keys(labels)
    .filter((key) => key !== "host")
    .sort()
    .map((key) => `${key}=${labels[key]}`);
}
