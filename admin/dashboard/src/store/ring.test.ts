import { expect, test } from "vitest";
import { Ring } from "./ring.ts";

test("the last values are there, oldest first", () => {
  const ring = new Ring(3);
  for (const value of [1, 2, 3, 4]) ring.push(value);
  expect(ring.toArray()).toEqual([2, 3, 4]);
});

test("it is flat once all is zero again, whatever was rounded", () => {
  const ring = new Ring(4);
  expect(ring.isFlat).toBe(true);
  ring.push(0.1);
  expect(ring.isFlat).toBe(false);
  for (let n = 0; n < 4; n += 1) ring.push(0);
  expect(ring.isFlat).toBe(true);
});
