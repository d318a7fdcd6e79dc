import { expect, test } from "vitest";

import { joined, lastWords } from "./recent.ts";

const item = (at_s: number, text = "x") => ({ at_s, text });
const key = ({ at_s, text }: { at_s: number; text: string }) => `${at_s} ${text}`;

test("what came twice is there once, newest first", () => {
  expect(joined([item(3), item(1)], [item(4), item(3), item(3, "y")], key, 9).map(key)).toEqual([
    "4 x",
    "3 x",
    "3 y",
    "1 x",
  ]);
  expect(joined([item(1), item(2)], [item(3)], key, 2)).toHaveLength(2);
});

test("a replica that was gone before anybody looked has the reason that was noted", () => {
  const decisions = [{ text: "b ended: was killed by SIGKILL" }, { text: "a ended: it was idle" }];
  expect(lastWords({ id: "a", why: "" }, decisions)).toBe("it was idle");
  expect(lastWords({ id: "a", why: "its own" }, decisions)).toBe("its own");
  expect(lastWords({ id: "c", why: "" }, decisions)).toBe("");
});
