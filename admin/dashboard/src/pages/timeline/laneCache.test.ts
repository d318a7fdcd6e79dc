import { expect, test } from "vitest";

import type { FunctionTimeline } from "../../api/types.ts";
import { LaneCache } from "./laneCache.ts";

const LANE = { use: [{ at_s: 0, waking_s: 0, idle_s: 0, busy_s: 1, device: "cpu:0" }] } as unknown as FunctionTimeline;
const names = (n: number) => Array.from({ length: n }, (_, at) => `fn${at}`);
const settled = () => new Promise((resolve) => setTimeout(resolve));

function cache() {
  const asked: string[] = [];
  const answers: (() => void)[] = [];
  let changes = 0;
  const one = new LaneCache(
    (name) => {
      asked.push(name);
      return new Promise((resolve) => answers.push(() => resolve(LANE)));
    },
    () => (changes += 1),
  );
  return { one, asked, answers, changes: () => changes };
}

test("a few are fetched at once, and those out of sight not at all", async () => {
  const { one, asked, answers } = cache();
  one.want(names(9));
  expect(asked).toHaveLength(3);
  one.want(["fn8"]);
  for (const answer of answers.splice(0)) answer();
  await settled();
  expect(asked).toEqual(["fn0", "fn1", "fn2", "fn8"]);
});

test("what came is kept and told", async () => {
  const { one, asked, answers, changes } = cache();
  one.want(["fn0"]);
  expect(one.get("fn0")).toBeNull();
  answers[0]!();
  await settled();
  expect(one.get("fn0")?.[0]?.busy_s).toBe(1);
  one.want(["fn0"]);
  expect([asked.length, changes()]).toEqual([1, 1]);
});

test("what fails is an empty lane", async () => {
  const one = new LaneCache(
    () => Promise.reject(new Error("no")),
    () => {},
  );
  one.want(["fn0"]);
  await settled();
  expect(one.get("fn0")).toEqual([]);
});

test("nothing is told after the end", async () => {
  const { one, answers, changes } = cache();
  one.want(["fn0", "fn1"]);
  one.stop();
  for (const answer of answers) answer();
  await settled();
  expect(changes()).toBe(0);
});
