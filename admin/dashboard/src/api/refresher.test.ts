import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { Refresher } from "./refresher.ts";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

function refresher(took_ms = 0) {
  const began: number[] = [];
  const start = Date.now();
  const fetch = async () => {
    began.push(Date.now() - start);
    await new Promise((resolve) => setTimeout(resolve, took_ms));
  };
  return { began, one: new Refresher(fetch, 1000, Date.now) };
}

test("the first is at once, the next no sooner than allowed", async () => {
  const { began, one } = refresher();
  one.ask();
  await vi.advanceTimersByTimeAsync(10);
  one.ask();
  one.ask();
  await vi.advanceTimersByTimeAsync(5000);
  expect(began).toEqual([0, 1000]);
});

test("who asks during one gets another, also if asked without end", async () => {
  const { began, one } = refresher(1500);
  for (let at = 0; at < 40; at += 1) {
    one.ask();
    await vi.advanceTimersByTimeAsync(100);
  }
  expect(began).toHaveLength(3);
});

test("none after its end", async () => {
  const { began, one } = refresher();
  one.ask();
  one.stop();
  one.ask();
  await vi.advanceTimersByTimeAsync(5000);
  expect(began).toEqual([]);
});
