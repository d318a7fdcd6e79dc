import { expect, test } from "vitest";

import type { Replica } from "../../api/types.ts";
import { departed, DEPARTED_MAX, joined } from "./recent.ts";

const item = (at_s: number, text = "x") => ({ at_s, text });
const key = ({ at_s, text }: { at_s: number; text: string }) => `${at_s} ${text}`;
const replica = (id: string) => ({ id, why: `why ${id}` }) as Replica;

test("what came twice is there once, newest first", () => {
  expect(joined([item(3), item(1)], [item(4), item(3), item(3, "y")], key, 9).map(key)).toEqual([
    "4 x",
    "3 x",
    "3 y",
    "1 x",
  ]);
  expect(joined([item(1), item(2)], [item(3)], key, 2)).toHaveLength(2);
});

test("who is no longer there has gone, with its last words", () => {
  const gone = departed([], [replica("a"), replica("b")], [replica("b")], 7);
  expect(gone).toEqual([{ replica: replica("a"), at_s: 7 }]);
  expect(departed(gone, [replica("b")], [replica("b"), replica("c")], 8)).toBe(gone);
  const many = departed(gone, ["1", "2", "3", "4", "5", "6"].map(replica), [], 9);
  expect(many).toHaveLength(DEPARTED_MAX);
});
