import { expect, test } from "vitest";

import type { TensorSpec } from "../api/types.ts";
import { checkRows, checkText, checkValue, described } from "./tensor.ts";

const spec = (dtype: string, ...shape: number[]): TensorSpec => ({ name: "x", dtype, shape });
const got = (text: string, wanted: TensorSpec) => {
  const checked = checkText(text, wanted);
  return "fault" in checked ? `${checked.fault.expected} | ${checked.fault.got}` : checked.shape;
};

test("a value that fits tells its shape", () => {
  expect(got("[[1, 2.5], [3, -4e2]]", spec("FP32", -1, 2))).toEqual([2, 2]);
  expect(got("7", spec("INT64"))).toEqual([]);
  expect(got('["a", "ä"]', spec("BYTES", -1))).toEqual([2]);
  expect(got("[true]", spec("BOOL", 1))).toEqual([1]);
});

test.each([
  ["", spec("FP32", -1), "FP32 of shape [-1] | nothing"],
  ["3", spec("FP32", -1), "a list for FP32 of shape [-1] | 3"],
  ["[]", spec("FP32", -1), "at least one item | an empty list"],
  ["[1, 2, 3]", spec("FP32", 2), "2 items for FP32 of shape [2] | 3"],
  ["[[1], [2, 3]]", spec("FP32", -1, -1), "lists of one length on axis 1 | lengths 1 and 2"],
  ['[[1, "a"]]', spec("FP32", -1, 2), 'a number for FP32 at [0][1] | "a"'],
  ["[1.5]", spec("INT8", 1), "an integer for INT8 at [0] | 1.5"],
  ["[300]", spec("UINT8", 1), "an integer from 0 to 255 at [0] | 300"],
  ["[-129]", spec("INT8", 1), "an integer from -128 to 127 at [0] | -129"],
  ["[70000]", spec("FP16", 1), "a number within FP16 at [0] | 70000"],
  ["[1]", spec("BOOL", 1), "true or false at [0] | 1"],
  ["[null]", spec("BYTES", 1), "a string at [0] | null"],
  ["[[1]]", spec("FP32", 1), "a number for FP32 at [0] | a list"],
])("%s is refused with what was expected and what came", (text, wanted, told) => {
  expect(got(text, wanted)).toBe(told);
});

test.each([
  ["1", []],
  ["[1, 2]", [2]],
  ["[[1], [2]]", [2, 1]],
  ["[[1], 2]", "a list at [1] for FP32 of any shape | 2"],
  ["[1, [2]]", "a number for FP32 at [1] | a list"],
])("%s has its own rank where the model declares no shape", (text, told) => {
  expect(got(text, { name: "x", dtype: "FP32", shape: null })).toEqual(told);
});

test("text that is not JSON is reported", () => {
  expect(got("[1,", spec("FP32", -1))).toMatch(/^FP32 of shape \[-1\] \| invalid JSON: /);
});

test("a long wrong value is cut", () => {
  const checked = checkValue("y".repeat(1000), spec("FP32"));
  expect("fault" in checked && checked.fault.got.length).toBeLessThan(70);
});

test("inputs with a dynamic first axis have the same rows", () => {
  const a = { ...spec("FP32", -1, 2), name: "a" };
  const b = { ...spec("FP32", -1), name: "b" };
  const fixed = { ...spec("FP32", 3), name: "c" };
  const shapes = new Map([
    ["a", [2, 2]],
    ["b", [2]],
    ["c", [3]],
  ]);
  expect(checkRows(shapes, [a, fixed, b])).toBeNull();
  expect(checkRows(shapes.set("b", [3]), [a, fixed, b])).toEqual([
    "b",
    { expected: "2 rows like input 'a'", got: "3 rows" },
  ]);
  expect(described(a)).toBe("FP32 of shape [-1, 2]");
});
