import { expect, test } from "vitest";
import { waitBefore } from "./backoff.ts";

test("each wait is twice the one before, up to a limit, half of it by chance", () => {
  expect([1, 2, 3].map((attempt) => waitBefore(attempt, 1))).toEqual([500, 1000, 2000]);
  expect(waitBefore(3, 0)).toBe(1000);
  expect(waitBefore(50, 1)).toBe(15_000);
});
