import { expect, test } from "vitest";
import type { ConnectedClient, FunctionDetail, FunctionRow, Why } from "../../api/types.ts";
import { ownerOf, toldOf } from "./connections.ts";

const LINE = { state: "warm", min: 0, idle_s: 300 } as FunctionRow;
const one = (kind: ConnectedClient["kind"], counts: boolean, path = "/a"): ConnectedClient => ({ key: "k1", note: "", kind, since_s: 1, path, counts });
const detail = (wake: string[] = [], websockets = "count") =>
  ({ server: { paths: { wake, free: [], deny: [] } }, exchange: { websockets } }) as unknown as FunctionDetail;
const why = (items: ConnectedClient[], counting: number, free: number, awake = "") => ({
  state: "warm",
  reason: "",
  blocked: "",
  decisions: [],
  cold_starts: [],
  connected: items,
  connections: { counting, free },
  awake,
}) as unknown as Why;

test("open exchanges keep it awake, and each kind has its remedy", () => {
  const items = [one("websocket", true), one("events", true, "/events"), one("request", true)];
  const told = toldOf(LINE, detail(), why(items, 3, 0, "3 open exchanges keep it awake"));
  expect(told.lead).toBe("3 open exchanges keep it awake.");
  expect(told.ignored).toBe("");
  expect(told.advice).toHaveLength(3);
  expect(told.advice[0]).toContain('websockets = "ignore"');
  expect(told.advice[1]).toContain('server.free = ["/events"]');
  expect(told.advice[2]).toContain("server.wake");
});

test("a minimum keeps it awake beside what is open, or alone", () => {
  const least = { ...LINE, min: 2 };
  expect(toldOf(least, detail(), why([], 0, 0)).lead).toBe("Its minimum of 2 replicas keeps it awake.");
  const both = toldOf(least, detail(), why([one("request", true)], 1, 0, "1 open exchange keeps it awake"));
  expect(both.lead).toBe("1 open exchange keeps it awake, and its minimum of 2 replicas keeps it awake.");
  expect(both.advice.at(-1)).toBe("`scaling.min = 0` lets it sleep.");
});

test("what is ignored is counted by kind, as far as it is listed", () => {
  const items = [one("websocket", false), one("websocket", false), one("request", false)];
  const told = toldOf(LINE, detail(), why(items, 0, 3, "what is open does not keep it awake"));
  expect(told).toMatchObject({ lead: "Nothing open keeps it awake. It sleeps after 5 min without use.", advice: [] });
  expect(told.ignored).toBe("Ignored: 2 WebSockets, 1 request.");
  expect(toldOf(LINE, detail(), why(items, 0, 1000)).ignored).toBe("Ignored: 1\u202f000 exchanges.");
});

test("asleep, it says what wakes it", () => {
  const cold = { ...LINE, state: "cold" } as FunctionRow;
  expect(toldOf(cold, detail(), why([], 0, 0)).lead).toBe("Asleep, woken by: every request.");
  const told = toldOf(cold, detail(["/lab*", "POST *"], "ignore"), why([], 0, 0));
  expect(told.lead).toBe("Asleep, woken by: /lab*, POST *.");
  expect(told.advice).toEqual(["WebSockets do not wake it."]);
});

test("waking and failing are said", () => {
  expect(toldOf({ ...LINE, state: "waking" }, detail(), why([], 0, 0)).lead).toContain("held until it is ready");
  expect(toldOf({ ...LINE, state: "failing" }, detail(), why([], 0, 0)).lead).toContain("fails to start");
});

test("an exchange is somebody's, by the key's label", () => {
  expect(ownerOf({ ...one("request", true), note: "the lab" })).toBe("the lab");
  expect(ownerOf(one("request", true))).toBe("key k1");
  expect(ownerOf({ ...one("request", true), key: "" })).toBe("no key");
});
