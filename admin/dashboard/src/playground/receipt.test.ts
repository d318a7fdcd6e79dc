import { expect, test } from "vitest";

import { parseServerTiming, receiptOf } from "./receipt.ts";

const WARM =
  'replica;desc="r1", queue;dur=0.100, decode;dur=0.020, batch;dur=0.500;desc="3 rows", compute;dur=1.200, encode;dur=0.030';
const COLD =
  'cold;desc="digits@3 on cpu:0", replica;desc="r2", queue;dur=160.000, place;dur=1.000, start;dur=100.000, ' +
  'import;dur=30.000, bind;dur=2.000, load;dur=20.000, decode;dur=0.020, batch;dur=0.000;desc="1 rows", first_run;dur=3.000, encode;dur=0.030';

test("metrics come with their times and texts", () => {
  expect(parseServerTiming(WARM).slice(0, 2)).toEqual([
    { name: "replica", ms: null, text: "r1" },
    { name: "queue", ms: 0.1, text: "" },
  ]);
  expect(parseServerTiming('a;desc="x, \\"y\\"; z";dur=1, b')).toEqual([
    { name: "a", ms: 1, text: 'x, "y"; z' },
    { name: "b", ms: null, text: "" },
  ]);
});

test("what cannot be read is left out", () => {
  expect(parseServerTiming("")).toEqual([]);
  expect(parseServerTiming("<b>;dur=1, ok;dur=many")).toEqual([{ name: "ok", ms: null, text: "" }]);
  expect(parseServerTiming("x,".repeat(1000))).toHaveLength(64);
});

test("a warm call has its own parts", () => {
  const receipt = receiptOf(WARM);
  expect(receipt?.parts.map((part) => part.name)).toEqual(["queue", "decode", "batch", "compute", "encode"]);
  expect(receipt?.totalMs).toBeCloseTo(1.85);
  expect([receipt?.replica, receipt?.cold, receipt?.rows]).toEqual(["r1", "", "3 rows"]);
});

test("a cold start on several GPUs says how many", () => {
  const receipt = receiptOf('cold;desc="llama@3 on 4 GPUs", load;dur=61000.000, replica;desc="r1", queue;dur=61001.000');
  expect(receipt?.cold).toBe("llama@3 on 4 GPUs");
});

test("the phases of a cold start stand in the place of the wait for it", () => {
  const receipt = receiptOf(COLD);
  expect(receipt?.cold).toBe("digits@3 on cpu:0");
  expect(receipt?.parts.find((part) => part.name === "queue")?.ms).toBeCloseTo(7);
  expect(receipt?.parts.filter((part) => part.isPhase).map((part) => part.name)).toEqual([
    "place",
    "start",
    "import",
    "bind",
    "load",
    "first_run",
  ]);
  expect(receipt?.totalMs).toBeCloseTo(163.05);
});

test("no header is no receipt", () => {
  expect(receiptOf("")).toBeNull();
});
