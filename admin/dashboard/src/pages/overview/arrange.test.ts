import { expect, test } from "vitest";
import type { FunctionRow } from "../../api/types.ts";
import { arrange, queryOf, sortedBy, viewOf } from "./arrange.ts";
import { nextRow } from "./keys.ts";
import { sumsOf } from "./totals.ts";

const line = (name: string, more: Partial<FunctionRow> = {}) =>
  ({ name, revision: `${name}@1`, state: "cold", rate: 0, p50_ms: null, held: 0, labels: {}, devices: [], ...more }) as FunctionRow;

const LINES = [
  line("a-10", { state: "warm", rate: 2, p50_ms: 9, labels: { team: "Vision" } }),
  line("a-2", { state: "failing" }),
  line("b", { state: "waking", rate: 7, p50_ms: 3, devices: ["gpu-1"] }),
  line("c"),
];
const shown = (query: string) => arrange(LINES, viewOf(new URLSearchParams(query)), (name) => (name === "c" ? 5 : 0));

test("what needs a look comes first", () => {
  expect(shown("")).toEqual(["a-2", "b", "a-10", "c"]);
});

test("numbers in names count as numbers", () => {
  expect(shown("sort=name")).toEqual(["a-2", "a-10", "b", "c"]);
  expect(shown("sort=-name")).toEqual(["c", "b", "a-10", "a-2"]);
});

test("what has no value comes last both ways", () => {
  expect(shown("sort=p50_ms")).toEqual(["b", "a-10", "a-2", "c"]);
  expect(shown("sort=-p50_ms")).toEqual(["a-10", "b", "a-2", "c"]);
  expect(shown("sort=-error")[0]).toBe("c");
});

test("all words are searched for in names, labels and devices", () => {
  expect(shown("q=VISION+a-")).toEqual(["a-10"]);
  expect(shown("q=gpu-1")).toEqual(["b"]);
  expect(shown("q=nothing")).toEqual([]);
});

test("states are filtered", () => {
  expect(shown("state=warm,waking,odd")).toEqual(["b", "a-10"]);
});

test("a view survives the way into the address and back, and nonsense is as usual", () => {
  const view = viewOf(new URLSearchParams("q=x&state=warm&sort=-rate"));
  expect(viewOf(new URLSearchParams(queryOf(view)))).toEqual(view);
  expect(viewOf(new URLSearchParams("sort=-odd&state=odd"))).toEqual({ text: "", states: [], sort: "state", isDescending: false });
  expect(queryOf(viewOf(new URLSearchParams()))).toEqual({ q: "", state: "", sort: "" });
});

test("a head turns its own order, and a number begins with the largest", () => {
  const view = viewOf(new URLSearchParams());
  expect(sortedBy(view, "rate")).toMatchObject({ sort: "rate", isDescending: true });
  expect(sortedBy(view, "name")).toMatchObject({ sort: "name", isDescending: false });
  expect(sortedBy(view, "state")).toMatchObject({ isDescending: true });
});

test("keys lead through the rows and stop at the ends", () => {
  expect(["ArrowDown", "ArrowUp", "PageDown", "PageUp", "Home", "End", "x"].map((key) => nextRow(key, 5, 10, 3))).toEqual([6, 4, 8, 2, 0, 9, null]);
  expect([nextRow("ArrowDown", 9, 10, 3), nextRow("ArrowUp", 0, 10, 3)]).toEqual([9, 0]);
});

test("sums count states, replicas and busy devices", () => {
  const replicas = [{ state: "ready" }, { state: "loading" }, { state: "standby" }] as never;
  const devices = [{ busy: 0.2 }, { busy: 0 }, { busy: null }] as never;
  expect(sumsOf(LINES, replicas, devices)).toEqual({
    states: { cold: 1, waking: 1, warm: 1, parked: 0, draining: 0, failing: 1 },
    functions: 4,
    parkable: 0,
    ready: 1,
    coming: 1,
    busy: 1,
    devices: 3,
  });
});
