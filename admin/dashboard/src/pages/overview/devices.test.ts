import { expect, test } from "vitest";
import type { DeviceRow, HostRow, ReplicaRow } from "../../api/types.ts";
import { groupsOf, isKept, ownLabels, shortId, troubleOf } from "./devices.ts";

const device = (id: string, host: string) => ({ id, host }) as DeviceRow;
const host = (name: string) => ({ name }) as HostRow;

test("devices are grouped by host, the server's own first", () => {
  const devices = [device("gpu10/GPU-b", "gpu10"), device("gpu2/cpu10", "gpu2"), device("gpu2/cpu9", "gpu2"), device("cpu0", "local")];
  expect(groupsOf(devices, [host("gpu2"), host("gpu10"), host("local")])).toEqual([
    { host: "local", ids: ["cpu0"] },
    { host: "gpu2", ids: ["gpu2/cpu9", "gpu2/cpu10"] },
    { host: "gpu10", ids: ["gpu10/GPU-b"] },
  ]);
});

test("a host without devices has a group, and so has a device whose host is not known yet", () => {
  expect(groupsOf([device("gpu3/cpu0", "gpu3")], [host("gpu2")])).toEqual([
    { host: "gpu2", ids: [] },
    { host: "gpu3", ids: ["gpu3/cpu0"] },
  ]);
});

test("an id is short where the host is known", () => {
  expect(shortId(device("gpu2/GPU-1", "gpu2"))).toBe("GPU-1");
  expect(shortId(device("cpu0", "local"))).toBe("cpu0");
});

test("the label that every host has is not one of the operator's", () => {
  expect(ownLabels({ zone: "a", host: "gpu2", disk: "nvme" })).toEqual(["disk=nvme", "zone=a"]);
});

test("trouble is the reason and what the agent lacks", () => {
  expect(troubleOf({ state: "up", reason: "", agent: "" })).toBe("");
  expect(troubleOf({ state: "up", reason: "disk is full", agent: "no report" })).toBe("disk is full; no report");
  expect(troubleOf({ state: "unreachable", reason: "timed out", agent: "no report" })).toBe("timed out");
});

test("an idle replica without a CPU slot is kept", () => {
  const one = { id: "r1", device: "cpu:0", state: "ready" } as ReplicaRow;
  const slot = (kind: string, ...replicas: string[]) => new Map([["cpu:0", { kind, replicas }]]);
  expect(isKept(one, slot("cpu"))).toBe(true);
  expect(isKept(one, slot("cpu", "r1"))).toBe(false);
  expect(isKept({ ...one, state: "loading" }, slot("cpu"))).toBe(false);
  expect(isKept(one, slot("cuda"))).toBe(false);
  expect(isKept(one, new Map())).toBe(false);
});
