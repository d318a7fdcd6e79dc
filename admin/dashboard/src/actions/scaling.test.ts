import { expect, test } from "vitest";
import { changeOf, faultsOf } from "./scaling.ts";

test("what fits has no fault", () => {
  expect(faultsOf({ min: "0", max: "2", idle_s: "0.5" })).toEqual({});
});

test("a fault names what was expected and what came", () => {
  const faults = faultsOf({ min: "-1", max: "1.5", idle_s: "long" });
  expect(faults.min).toBe('expected a whole number from 0 to 1000, got "-1"');
  expect(faults.max).toContain('got "1.5"');
  expect(faults.idle_s).toContain('got "long"');
  expect(faultsOf({ min: "3", max: "2", idle_s: "1" }).min).toBe("expected at most max, 2, got 3");
});

test("only what is other is changed", () => {
  expect(changeOf({ min: "0", max: "4", idle_s: "300" }, { min: 0, max: 1, idle_s: 300 })).toEqual({ max: 4 });
});
