import { expect, test } from "vitest";

import { joined } from "./recent.ts";

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
