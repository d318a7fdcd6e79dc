import { expect, test } from "vitest";

import { compared } from "./advice.ts";

const row = (idle_s: number, idle_device_s: number, waited_s: number, is_current = false) => ({
  idle_s,
  cold_starts: 1,
  waited_s,
  held: 1,
  device_s: idle_device_s,
  idle_device_s,
  is_current,
});

test("every row is told against the present one", () => {
  const rows = compared([row(300, 1000, 2, true), row(60, 250, 5)]);
  expect(
    rows.map(({ idle_s, more_idle_device_s, more_waited_s, share }) => [
      idle_s,
      more_idle_device_s,
      more_waited_s,
      share,
    ]),
  ).toEqual([
    [60, -750, 3, 0.25],
    [300, 0, 0, 1],
  ]);
});

test("no present row, no difference", () => {
  expect(compared([row(60, 0, 5)])[0]).toMatchObject({ more_idle_device_s: 0, more_waited_s: 0, share: 0 });
  expect(compared([])).toEqual([]);
});
