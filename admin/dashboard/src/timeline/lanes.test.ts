import { expect, test } from "vitest";

import { barPath, blocks, bucketAt, stack, summed, ticks, x } from "./lanes.ts";

const SCALE = { from_s: 0, to_s: 600, width: 100 };
const use = (at_s: number, busy_s = 0, idle_s = 0, waking_s = 0) => ({ at_s, busy_s, idle_s, waking_s });

test("times outside of the line stay on its ends", () => {
  expect([-10, 0, 300, 900].map((at) => x(SCALE, at))).toEqual([0, 0, 50, 100]);
  expect(x({ from_s: 5, to_s: 5, width: 100 }, 5)).toBe(0);
});

test("seconds stack up, busy lowest", () => {
  const paths = stack([use(0, 30, 15, 0), use(60, 0, 0, 60)], 60, SCALE, 20);
  expect(paths.busy).toBe("M0 20h10v-10h-10z");
  expect(paths.idle).toBe("M0 10h10v-5h-10z");
  expect(paths.waking).toBe("M10 20h10v-20h-10z");
});

test("what took a moment is still seen", () => {
  expect(stack([use(0, 0, 0, 0.01)], 60, SCALE, 20).waking).toBe("M0 20h10v-1h-10z");
});

test("a bucket is full with all its devices, or as the fullest", () => {
  expect(stack([use(0, 60)], 60, SCALE, 20, 2).busy).toBe("M0 20h10v-10h-10z");
  expect(stack([use(0, 60), use(60, 240)], 60, SCALE, 20).busy).toBe("M0 20h10v-5h-10zM10 20h10v-20h-10z");
  expect(stack([use(700, 60)], 60, SCALE, 20).busy).toBe("");
});

test("devices add up by time", () => {
  expect(summed([use(60, 1), use(0, 2, 3), use(60, 4, 0, 5)])).toEqual([use(0, 2, 3), use(60, 5, 0, 5)]);
});

test("arrivals are bars, and few of them are still seen", () => {
  expect(
    barPath(
      [
        { at_s: 0, count: 1000 },
        { at_s: 60, count: 1 },
        { at_s: 120, count: 0 },
      ],
      60,
      SCALE,
      10,
    ),
  ).toBe("M0 10h9.6v-10h-9.6zM10 10h9.6v-1h-9.6z");
});

test("states that nobody could see are not drawn one by one", () => {
  const state = (from_s: number, to_s: number, state: string) => ({ from_s, to_s, state, reason: "", revision: "web@1" });
  const found = blocks(
    [state(0, 100, "cold"), state(100, 100.5, "waking"), state(100.5, 300, "cold"), state(300, 600, "warm")],
    SCALE,
  );
  expect(found.map((block) => [block.state, Math.round(block.left), Math.round(block.width)])).toEqual([
    ["cold", 0, 50],
    ["warm", 50, 50],
  ]);
});

test("ticks lie on whole times of the zone", () => {
  const day = { from_s: 1000, to_s: 87_400, width: 600 };
  expect(ticks(day, 90, 0)[0]).toBe(14_400);
  expect(ticks(day, 90, 3600)[0]).toBe(10_800);
  expect(ticks({ from_s: 0, to_s: 3600, width: 600 }, 90, 0)).toEqual([0, 600, 1200, 1800, 2400, 3000]);
  expect(ticks(day, 90, 0).length).toBeLessThanOrEqual(7);
});

test("the bucket of a time is found", () => {
  expect(bucketAt([use(0), use(60)], 70, 60)?.at_s).toBe(60);
  expect(bucketAt([use(0)], 70, 60)).toBeUndefined();
});
