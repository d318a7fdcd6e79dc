import { expect, test } from "vitest";

import { endOf, joined } from "./recent.ts";

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

test("a replica's end is told by a decision", () => {
  const decisions = [{ text: "r1 is ready" }, { text: "r1 ended: was killed by SIGKILL" }, { text: "r10 ended: idle" }];
  expect([endOf("r1", decisions), endOf("r2", decisions)]).toEqual(["was killed by SIGKILL", ""]);
});
