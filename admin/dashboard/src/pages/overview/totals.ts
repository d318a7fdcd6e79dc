import { COMING, type DeviceRow, type FunctionRow, type FunctionState, type ReplicaRow } from "../../api/types.ts";

export interface Sums {
  states: Record<FunctionState, number>;
  functions: number;
  /** Functions with the table [park]. */
  parkable: number;
  ready: number;
  coming: number;
  busy: number;
  devices: number;
}

/** Totals. Replicas without a function (standbys) are not counted as serving. */
export function sumsOf(functions: Iterable<FunctionRow>, replicas: Iterable<ReplicaRow>, devices: Iterable<DeviceRow>): Sums {
  const sums: Sums = {
    states: { cold: 0, waking: 0, warm: 0, parked: 0, draining: 0, failing: 0 },
    functions: 0,
    parkable: 0,
    ready: 0,
    coming: 0,
    busy: 0,
    devices: 0,
  };
  for (const line of functions) {
    sums.functions += 1;
    sums.states[line.state] += 1;
    if (line.park) sums.parkable += 1;
  }
  for (const replica of replicas) {
    if (replica.state === "ready") sums.ready += 1;
    if (COMING.includes(replica.state)) sums.coming += 1;
  }
  for (const device of devices) {
    sums.devices += 1;
    if ((device.busy ?? 0) > 0) sums.busy += 1;
  }
  return sums;
}
