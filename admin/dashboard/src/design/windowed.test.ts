import { expect, test } from "vitest";
import { spanOf } from "./windowed.ts";

test("what is in sight is drawn, with a few rows around", () => {
  expect(spanOf(1000, 40, 0, 800)).toEqual({ first: 0, end: 24 });
  expect(spanOf(1000, 40, -20_000, 800)).toEqual({ first: 496, end: 524 });
});

test("it ends with the list, and a list beyond the view is empty", () => {
  expect(spanOf(10, 40, 0, 800)).toEqual({ first: 0, end: 10 });
  expect(spanOf(0, 40, 0, 800)).toEqual({ first: 0, end: 0 });
  const { first, end } = spanOf(1000, 40, 5000, 800);
  expect(end - first).toBe(0);
});

test("a row in sight is always within, however far it is scrolled", () => {
  for (let top = 100; top > -40_000; top -= 137) {
    const { first, end } = spanOf(1000, 40, top, 800);
    const seen = Math.min(999, Math.max(0, Math.floor(-top / 40)));
    expect(first).toBeLessThanOrEqual(seen);
    expect(end).toBeGreaterThan(seen);
  }
});
