import { expect, test } from "vitest";

import { length_ms, placeOf, rest, roundUp, scaleOf, segments, sentence } from "./waterfall.ts";

const PHASES = { load: 50, place: 10, start: 40, first_run: 0 };

test("phases follow each other in their order", () => {
  expect(segments(PHASES, 200)).toEqual([
    { phase: "place", ms: 10, from: 0, share: 0.05 },
    { phase: "start", ms: 40, from: 0.05, share: 0.2 },
    { phase: "load", ms: 50, from: 0.25, share: 0.25 },
  ]);
});

test("a start on several GPUs says how many", () => {
  const devices = ["GPU-a", "GPU-b"];
  expect(placeOf({ device_kind: "cuda", devices: [], host: "local" })).toBe("cuda");
  expect(placeOf({ device_kind: "cuda", devices: ["GPU-a"], host: "gpu2" })).toBe("cuda of gpu2");
  expect(placeOf({ device_kind: "cuda", devices, host: "local" })).toBe("2 GPUs");
  expect(placeOf({ device_kind: "cuda", devices, host: "gpu2" })).toBe("2 GPUs of gpu2");
});

test("bars never leave their scale", () => {
  const all = segments({ place: 80, load: 80 }, 100);
  expect(all.at(-1)!.from + all.at(-1)!.share).toBeCloseTo(1);
  expect(segments(PHASES, 0)).toEqual([]);
  expect(segments({ load: Number.NaN }, 10)).toEqual([]);
});

test("the scale is round and holds the longest", () => {
  expect([1, 1.2, 7, 99, 160, 1501].map(roundUp)).toEqual([1, 1.5, 8, 100, 200, 2000]);
  expect(
    scaleOf([
      { phases: PHASES, total_ms: 95 },
      { phases: {}, total_ms: 160 },
    ]),
  ).toBe(200);
  expect(length_ms({ phases: PHASES, total_ms: 95 })).toBe(100);
  expect(scaleOf([])).toBe(1);
});

test("what no phase covers is at the end", () => {
  expect(rest({ phases: PHASES, total_ms: 150 }, 200)).toEqual({ from: 0.5, share: 0.25 });
  expect(rest({ phases: PHASES, total_ms: 100 }, 200)).toBeNull();
  expect(rest({ phases: {}, total_ms: 500 }, 200)).toEqual({ from: 0, share: 1 });
});

test("words begin with what took longest", () => {
  expect(sentence(PHASES)).toBe("load 50 ms, start 40 ms, place 10 ms");
  expect(sentence({})).toBe("no phase was measured");
});
