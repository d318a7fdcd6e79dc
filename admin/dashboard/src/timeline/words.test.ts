import { expect, test } from "vitest";

import { brief, busyShare, exactly, signed, time, timesOf } from "./words.ts";

test("times are told where there are any", () => {
  expect(timesOf({ busy_s: 185, idle_s: 0, waking_s: 4.2 })).toBe("busy 3 min 05 s, waking 4.2 s");
  expect(timesOf({ busy_s: 0, idle_s: 0, waking_s: 0 })).toBe("nothing ran");
  expect(timesOf(undefined)).toBe("nothing ran");
  expect([time(0), time(0.25), time(12.3)]).toEqual(["0 s", "0.3 s", "12 s"]);
});

test("columns have the largest unit, settings the exact one", () => {
  expect([0, 4.2, 59, 90, 2520, 13_680, 720_000].map(brief)).toEqual([
    "0 s",
    "4.2 s",
    "59 s",
    "1.5 min",
    "42 min",
    "3.8 h",
    "200 h",
  ]);
  expect([0, 0.5, 90, 300, 3600, 5400].map(exactly)).toEqual(["0 s", "0.5 s", "90 s", "5 min", "1 h", "90 min"]);
});

test("a share is never more than all", () => {
  expect([
    busyShare({ busy_s: 30, idle_s: 0, waking_s: 0 }, 60),
    busyShare({ busy_s: 90, idle_s: 0, waking_s: 0 }, 60),
  ]).toEqual([0.5, 1]);
  expect(busyShare({ busy_s: 1, idle_s: 0, waking_s: 0 }, 0)).toBe(0);
});

test("differences have a sign", () => {
  expect([signed(-180, "time"), signed(12, "count"), signed(0.01, "time")]).toEqual(["− 3.0 min", "+ 12", "±0"]);
});
