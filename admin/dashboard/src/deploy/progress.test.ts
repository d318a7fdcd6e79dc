import { expect, test } from "vitest";
import { advanced, ended, moved, titleOf, type Step } from "./progress.ts";

test("a phase with another first word ends the step before", () => {
  let steps: readonly Step[] = moved([], "send", "", 0, 0);
  steps = moved(steps, "send", "", 0.5, 40);
  steps = advanced(steps, "pull", 100);
  steps = advanced(steps, "pull 35 % of 1.2 GiB", 200);
  expect(steps).toEqual([
    { name: "send", text: "", share: 0.5, began_ms: 0, ms: 100 },
    { name: "pull", text: "35 % of 1.2 GiB", share: 0.35, began_ms: 100, ms: null },
  ]);
  expect(ended(steps, 350).map(({ ms }) => ms)).toEqual([100, 250]);
});

test("words beside a phase that are no share are kept as they are", () => {
  const [step] = advanced([], "pull waits for another one", 0);
  expect(step).toMatchObject({ name: "pull", text: "waits for another one", share: null });
  expect(titleOf(step!)).toBe("Pull the image");
});

test("an unknown phase has its own name, and the list is bounded", () => {
  let steps: readonly Step[] = [];
  for (let at = 0; at < 100; at++) steps = advanced(steps, `p${at}`, at);
  expect(steps).toHaveLength(30);
  expect(titleOf(steps.at(-1)!)).toBe("p99");
  expect(steps.filter(({ ms }) => ms === null)).toHaveLength(1);
});
