import { expect, test } from "vitest";
import { ago, count, countdown, mebibytes, millis, percent, plural, rate, span } from "./format.ts";

test("numbers are short", () => {
  expect([0, 7, 12.34, 123.4, 1234, 123_456].map(count)).toEqual(["0", "7", "12.3", "123", "1\u202f234", "123k"]);
  expect([0, 0.04, 3.25].map(rate)).toEqual(["–", "<0.1", "3.3"]);
  expect([plural(1, "replica"), plural(0, "replica")]).toEqual(["1 replica", "0 replicas"]);
  expect([percent(0.256), percent(null)]).toEqual(["26%", "–"]);
});

test("times are in their largest units", () => {
  expect([null, 0.84, 42.4, 1240, 12_400, 75_000].map(millis)).toEqual(["–", "0.8 ms", "42 ms", "1.24 s", "12.4 s", "1 min 15 s"]);
  expect([3, 245, 7800, 273_600].map(span)).toEqual(["3 s", "4 min 05 s", "2 h 10 min", "3 d 4 h"]);
  expect([-2, 0.2, 45, 725, 3720].map(countdown)).toEqual(["0:00", "0:01", "0:45", "12:05", "1:02:00"]);
  expect([0, 12, 200, 7200, 200_000].map(ago)).toEqual(["now", "12 s ago", "3 min ago", "2 h ago", "2 d ago"]);
});

test("memory is in MiB or GiB", () => {
  expect([null, 0, 0.037, 512, 8192, 144_384].map(mebibytes)).toEqual(["–", "0 MiB", "38 KiB", "512 MiB", "8.0 GiB", "141 GiB"]);
});
