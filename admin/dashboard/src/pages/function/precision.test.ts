import { describe, expect, it } from "vitest";
import type { PrecisionReport, ColumnReport } from "../../api/types.ts";
import { figures, measured, percent, place, short, small } from "./precision.ts";

const COLUMN: ColumnReport = {
  output: "y",
  part: "column 3",
  error: 0.31,
  error_max: 0.02,
  spread: 0.23,
  bias: 0.1,
  gain: 0.45,
};

const REPORT: PrecisionReport = {
  chosen: "int8",
  candidates: [
    { name: "original", why_not: "", latency_ms: { "1": 2, "8": 8, "32": 31 }, batchable: true },
    { name: "int8", why_not: "", latency_ms: { "1": 1, "8": 2, "32": 4 }, batchable: true, cosine: 0.999, same_label: 0.995 },
    { name: "int8-dynamic", why_not: "cosine 0.9 is below 0.99", cosine: 0.9 },
  ],
  tolerance: 0.01,
  calibrated: 32,
  judged: 200,
  source: "samples",
};

describe("the candidates of other precision", () => {
  it("that are not joined count alone", () => {
    const [original, int8] = REPORT.candidates;
    if (!original || !int8) throw new Error("two candidates");
    const alone = { ...REPORT, candidates: [original, { ...int8, batchable: false }] };
    expect(measured(alone)[1]?.best).toEqual({ ms: 1, rows: 1 });
    const single = { ...REPORT, candidates: [{ ...original, batchable: false }, int8] };
    expect(measured(single).map((one) => one.best?.rows)).toEqual([1, 1]);
  });

  it("are compared at the original's useful batch", () => {
    const [original, int8, dynamic] = measured(REPORT);
    expect([original?.best, original?.time, original?.gain]).toEqual([{ ms: 1, rows: 8 }, 1, null]);
    expect([int8?.best, int8?.time, int8?.gain]).toEqual([{ ms: 0.25, rows: 8 }, 0.25, 4]);
    expect([dynamic?.best, dynamic?.time, dynamic?.gain]).toEqual([null, 0, null]);
    expect(measured(REPORT).map((one) => one.isChosen)).toEqual([false, true, false]);
  });

  it("disagree by the worse of cosine and labels, in units of the tolerance", () => {
    const [original, int8, dynamic] = measured(REPORT);
    expect(original?.off).toBe(null);
    expect(int8?.off).toBeCloseTo(0.005);
    expect(int8?.reach).toBeCloseTo(0.25);
    expect(dynamic?.reach).toBe(1);
  });

  it("may have no room for disagreement", () => {
    const exact = { ...REPORT, tolerance: 0 };
    expect(measured(exact).map((one) => one.reach)).toEqual([0, 1, 1]);
    const [original, int8] = REPORT.candidates;
    if (!original || !int8) throw new Error("two candidates");
    const same = { ...int8, cosine: 1, same_label: 1, column: { ...COLUMN, error: 0, error_max: 0 } };
    const off = { ...same, column: { ...same.column, error: 0.01 } };
    expect(measured({ ...exact, candidates: [original, same, off] }).map((one) => one.reach)).toEqual([0, 0, 1]);
  });

  it("disagree by the worst column, as a share of what is permitted", () => {
    const [original, int8] = REPORT.candidates;
    if (!original || !int8) throw new Error("two candidates");
    const one = measured({ ...REPORT, candidates: [original, { ...int8, column: COLUMN }] })[1];
    expect(one?.off).toBeCloseTo(0.155);
    expect(one?.reach).toBe(1);
  });

  it("say which column that is, and its figures", () => {
    expect(place(COLUMN)).toBe("y column 3");
    expect(place({ ...COLUMN, part: "" })).toBe("y");
    expect(figures(COLUMN)).toBe("y column 3: error 31 % of its spread 0.23, at most 2 % is permitted; bias 0.1, gain 0.45");
    expect(figures({ ...COLUMN, gain: null })).toBe(
      "y column 3: error 31 % of its magnitude, it is constant, at most 2 % is permitted; bias 0.1",
    );
    expect([percent(0), percent(0.000241), percent(1e9)]).toEqual(["0 %", "0.024 %", "100000000000 %"]);
  });
});

it("numbers are short", () => {
  expect([small(0), small(1e-7), small(0.000412), small(0.1)]).toEqual(["0", "<0.00001", "0.00041", "0.1"]);
  expect([short(0), short(0.00021), short(0.00421)]).toEqual(["0 ms", "0.21 µs", "0.0042 ms"]);
  expect([short(0.4), short(12.4)]).toEqual(["0.4 ms", "12 ms"]);
});
