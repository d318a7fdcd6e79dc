import { expect, test } from "vitest";
import type { BeatEvent, DeviceRow, FunctionRow, HostRow, ReplicaRow } from "../api/types.ts";
import { KEPT_IN_ALL, KEPT } from "./activity.ts";
import { SPARK, Store, topic } from "./store.ts";

const LINE = {
  name: "digits", revision: "digits@3", state: "cold", reason: "no calls", ready: 0, wanted: 0, held: 0, in_flight: 0, min: 0, max: 1,
  idle_s: 300, labels: {}, since_s: 0, cold_start_ms: null, ready_in_ms: null, created_s: 0, rate: 0, p50_ms: null, p95_ms: null,
  sleeps_at_s: null, phase: null, devices: [],
} as unknown as FunctionRow;
const BEAT: BeatEvent = { at_s: 100, held: 0, in_flight: 0, rate: 0, readyz: { status: "ok", reasons: [] } };
const SERVER = { version: "0", driver: "process", started_s: 0, workers: 1 };

function setUp() {
  const clock = { now_ms: 100_000 };
  const due: (() => void)[] = [];
  const store = new Store(() => clock.now_ms, (flush) => void due.push(flush));
  const frame = () => {
    for (const flush of due.splice(0)) flush();
  };
  return { store, clock, frame, due };
}

const line = (name: string, more: Partial<FunctionRow> = {}): FunctionRow => ({ ...LINE, name, ...more });
const functions = (...items: FunctionRow[]) => ({ type: "functions" as const, data: { items } });

test("a row hears of its own changes only, once a frame", () => {
  const { store, frame, due } = setUp();
  const heard: string[] = [];
  store.topics.subscribe(topic.fn("a"), () => heard.push("a"));
  store.topics.subscribe(topic.fn("b"), () => heard.push("b"));
  store.apply(functions(line("a"), line("c")));
  store.apply(functions(line("a", { held: 1 })));
  expect(heard).toEqual([]);
  expect(due).toHaveLength(1);
  frame();
  expect(heard).toEqual(["a"]);
});

test("whoever has left hears nothing more", () => {
  const { store, frame } = setUp();
  let heard = 0;
  const leave = store.topics.subscribe(topic.names, () => (heard += 1));
  store.apply(functions(line("a")));
  leave();
  frame();
  expect(heard).toBe(0);
});

test("names change when a function comes or goes, not with its state", () => {
  const { store } = setUp();
  store.apply(functions(line("a")));
  const before = store.namesVersion;
  store.apply(functions(line("a", { state: "warm" })));
  expect(store.namesVersion).toBe(before);
  store.apply({ type: "gone", data: { functions: ["a"], replicas: [] } });
  expect(store.namesVersion).toBe(before + 1);
  expect(store.functions.size).toBe(0);
});

test("a snapshot takes the place of what was known only once it is whole", () => {
  const { store } = setUp();
  store.apply(functions(line("a", { rate: 1 }), line("b")));
  store.apply({ type: "replicas", data: { items: [{ id: "r1" } as ReplicaRow] } });
  store.apply({ type: "devices", data: { items: [{ id: "cpu0" } as DeviceRow] } });
  store.apply({ type: "hosts", data: { items: [{ name: "gpu2" } as HostRow] } });
  store.apply({ type: "beat", data: BEAT });
  const known = store.functions.get("b");

  store.apply({ type: "reset", data: { reason: "", server: SERVER } });
  store.apply(functions(line("b", { held: 5 }), line("c"), line("d")));
  store.apply({ type: "replicas", data: { items: [{ id: "r2" } as ReplicaRow, { id: "r3" } as ReplicaRow] } });
  store.apply({ type: "hosts", data: { items: [{ name: "gpu3" } as HostRow, { name: "gpu4" } as HostRow] } });
  store.apply({ type: "gone", data: { functions: ["d"], replicas: ["r3"], hosts: ["gpu4"] } });
  store.apply({ type: "beat", data: BEAT });
  expect([...store.functions.keys()]).toEqual(["a", "b"]);
  expect([store.functions.get("b"), store.connection.is]).toEqual([known, "connecting"]);

  store.apply({ type: "ready", data: {} });
  expect([...store.functions.keys()]).toEqual(["b", "c"]);
  expect([store.functions.get("b")?.held, [...store.replicas.keys()], store.devices.size]).toEqual([5, ["r2"], 0]);
  expect([...store.hosts.keys()]).toEqual(["gpu3"]);
  expect([store.ring("a"), store.isWhole, store.connection.is, store.server]).toEqual([null, true, "live", SERVER]);
});

test("a snapshot that breaks off is forgotten with the next", () => {
  const { store } = setUp();
  store.apply({ type: "reset", data: { reason: "", server: SERVER } });
  store.apply(functions(line("old")));
  store.apply({ type: "reset", data: { reason: "", server: SERVER } });
  store.apply(functions(line("new")));
  store.apply({ type: "ready", data: {} });
  expect([...store.functions.keys()]).toEqual(["new"]);
});

test("a resumed stream is live with its first beat", () => {
  const { store } = setUp();
  store.apply({ type: "ready", data: {} });
  store.setConnection({ is: "reconnecting", why: "", attempt: 1, next_ms: 1 });
  store.apply({ type: "beat", data: BEAT });
  expect(store.connection.is).toBe("live");
});

test("rates are kept for a minute, and not at all for who is quiet", () => {
  const { store } = setUp();
  store.apply(functions(line("a", { rate: 2 }), line("b")));
  store.apply({ type: "beat", data: BEAT });
  expect(store.ring("b")).toBe(null);
  expect(store.ring("a")?.toArray().at(-1)).toBe(2);
  store.apply(functions(line("a")));
  for (let second = 0; second < SPARK; second += 1) store.apply({ type: "beat", data: BEAT });
  expect(store.ring("a")).toBe(null);
});

test("what happened is bounded for each function and in all", () => {
  const { store } = setUp();
  for (let n = 0; n < 3 * KEPT; n += 1) {
    store.apply({ type: "decision", data: { function: "a", revision: "a@1", at_s: n, text: `${n}` } });
  }
  expect(store.activities.get("a").decisions).toHaveLength(KEPT);
  expect(store.activities.get("a").decisions[0]?.at_s).toBe(3 * KEPT - 1);
  const error = { function: "a", revision: "", replica: "", code: "x", detail: "y", request_id: "", at_s: 1, count: 1 };
  store.apply({ type: "error", data: error });
  for (let n = 0; n < KEPT_IN_ALL; n += 1) {
    store.apply({ type: "decision", data: { function: `f${n}`, revision: "", at_s: 0, text: "" } });
  }
  expect(store.activities.get("a")).toMatchObject({ decisions: [], coldStarts: [], errors: [error] });
  store.apply({ type: "gone", data: { functions: ["a"], replicas: [] } });
});

test("errors alike in a row are counted", () => {
  const { store } = setUp();
  const error = { function: "a", revision: "", replica: "", code: "x", detail: "y", request_id: "", at_s: 1, count: 2 };
  store.apply({ type: "error", data: error });
  store.apply({ type: "error", data: { ...error, at_s: 2, count: 3 } });
  store.apply({ type: "error", data: { ...error, code: "z" } });
  expect(store.activities.get("a").errors.map((one) => [one.code, one.count])).toEqual([["z", 2], ["x", 5]]);
});

test("operations are bounded, the oldest goes first", () => {
  const { store } = setUp();
  const running = { name: "a", kind: "deploy", state: "running", phase: "verify", result: {}, error: {}, namespace: "", created_s: 1, ended_s: 0 } as const;
  for (let n = 0; n < 60; n += 1) store.apply({ type: "operation", data: { ...running, id: `${n}` } });
  expect([store.operations.size, store.operations.has("9"), store.operations.has("10")]).toEqual([50, false, true]);
});

test("the server's clock is told from its beats", () => {
  const { store, clock } = setUp();
  expect(store.silence_s()).toBe(null);
  store.apply({ type: "beat", data: { ...BEAT, at_s: 160 } });
  clock.now_ms += 3000;
  expect([store.serverNow_s(), store.silence_s()]).toEqual([163, 3]);
});

test("a countdown begins when its number was heard, and anew with another", () => {
  const { store, clock } = setUp();
  const waking = line("a", { state: "waking", phase: "load", ready_in_ms: 5000 });
  store.apply(functions(waking));
  clock.now_ms += 1000;
  store.apply(functions({ ...waking, held: 2 }));
  expect(store.heardAt_ms("a")).toBe(100_000);
  store.apply(functions({ ...waking, ready_in_ms: 2000 }));
  expect(store.heardAt_ms("a")).toBe(101_000);
});

test("an event of a newer server is no fault", () => {
  const { store } = setUp();
  expect(() => store.apply({ type: "weather", data: {} } as never)).not.toThrow();
});

test("a host that is removed goes with its devices", () => {
  const { store, frame } = setUp();
  const heard: string[] = [];
  store.apply({ type: "hosts", data: { items: [{ name: "gpu2", state: "up" } as HostRow] } });
  store.apply({ type: "devices", data: { items: [{ id: "gpu2/cpu0", host: "gpu2" } as DeviceRow] } });
  for (const name of [topic.hosts, topic.host("gpu2"), topic.devices]) store.topics.subscribe(name, () => heard.push(name));
  store.apply({ type: "hosts", data: { items: [{ name: "gpu2", state: "unreachable" } as HostRow] } });
  frame();
  expect(heard).toEqual([topic.host("gpu2")]);
  store.apply({ type: "gone", data: { functions: [], replicas: [], hosts: ["gpu2"], devices: ["gpu2/cpu0"] } });
  frame();
  expect([store.hosts.size, store.devices.size]).toEqual([0, 0]);
  expect(heard.slice(1).sort()).toEqual([topic.devices, topic.host("gpu2"), topic.hosts].sort());
});
