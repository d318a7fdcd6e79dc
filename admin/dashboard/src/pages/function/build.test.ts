import { expect, test } from "vitest";
import type { BuildDetail, BuildRow } from "../../api/types.ts";
import { buildAdvice, buildFacts, buildMeaning, buildTimes, buildTitle, deviceName } from "./build.ts";

const running: BuildRow = { state: "building", reason: "", began_s: 100, estimate_s: 40 };
const done: BuildDetail = {
  ...running,
  state: "done",
  began_s: null,
  attempts: 0,
  ranges: [{ input: "x", smallest: [1, 4], usual: [8, 4], largest: [8, 4] }],
  elapsed_s: 38,
  compiler: "tensorrt",
  device_type: "cuda",
  host: "gpu2",
  device_model: "NVIDIA L4, sm89",
  outside: "refuse",
  form: "cache",
  parity: [
    { output: "a", largest_difference: 1, relative_difference: 0.001, cosine: 1 },
    { output: "b", largest_difference: 0, relative_difference: 0.002, cosine: 1 },
  ],
  samples: 12,
  ordinary_ms: { "8": 9, "1": 0.5 },
  compiled_ms: { "8": 3, "1": 0.25 },
  load_ms: null,
  memory_mib: null,
  made_s: null,
};

test("a running build shows its time and the estimate", () => {
  expect(buildTitle(running, 112)).toBe("building: 12 s of about 40 s");
  expect(buildTitle(running, 145)).toBe("building: 45 s, estimated 40 s");
  expect(buildTitle({ ...running, estimate_s: null }, 112)).toBe("building: 12 s");
  expect(buildTitle(running, 90)).toBe("building: 0 s of about 40 s");
  expect(buildTitle({ ...running, state: "waiting", began_s: null }, 112)).toBe("waiting");
});

test("a type of device has its host and model", () => {
  expect(deviceName(done)).toBe("gpu2 NVIDIA L4, sm89");
  expect(deviceName({ ...done, host: "local", device_model: "", device_type: "cpu" })).toBe("local cpu");
});

test("a state without a reason is explained", () => {
  expect(buildMeaning({ ...running, state: "waiting" })).toContain("when a device is free");
  expect(buildMeaning(running)).toContain("answered meanwhile");
  expect(buildMeaning({ ...running, state: "failed", reason: "output y differs" })).toBe("output y differs");
  expect(buildMeaning({ ...running, state: "done" })).toBe("");
});

test("advice is given where an operator can help", () => {
  expect(buildAdvice({ ...running, state: "given_up" }, "digits")).toBe("fnctl prepare digits --now");
  expect(buildAdvice(running, "digits")).toBe("");
});

test("the facts name the output that differs most", () => {
  expect(buildFacts(done)).toEqual([
    ["by", "tensorrt for cuda"],
    ["graph", "compiled in parts"],
    ["took", "38 s"],
    ["differs by", "0.0020 (b, 12 samples)"],
    ["shapes", "x 1x4 to 8x4"],
    ["other shapes", "are refused"],
  ]);
  expect(buildFacts({ ...done, compiler: null, form: null, elapsed_s: null, parity: [], ranges: [], outside: null })).toEqual([]);
  const same = [{ output: "a", largest_difference: 0, relative_difference: 0, cosine: 1 }];
  expect(buildFacts({ ...done, parity: same })).toContainEqual(["differs by", "0 (a, 12 samples)"]);
  expect(buildFacts({ ...done, parity: same, samples: 0 })).toContainEqual(["differs by", "0 (a)"]);
});

test("times are in the order of the rows", () => {
  expect(buildTimes(done)).toEqual([
    { rows: 1, ordinary: "0.500 ms", compiled: "0.250 ms" },
    { rows: 8, ordinary: "9.0 ms", compiled: "3.0 ms" },
  ]);
});
