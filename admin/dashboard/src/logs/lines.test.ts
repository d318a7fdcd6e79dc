import { expect, test } from "vitest";

import { isAtEnd, Lines, matching, TEXT_MAX } from "./lines.ts";

const line = (text: string, replica = "r1") => ({ text, replica });

test("only the last lines are kept, and all are counted", () => {
  const lines = new Lines(3);
  lines.add([line("a"), line("b")]);
  const before = lines.all;
  lines.add([line("c"), line("d")]);
  expect(lines.all.map(({ n, text }) => `${n}${text}`)).toEqual(["2b", "3c", "4d"]);
  expect(lines.count).toBe(4);
  expect(before).toHaveLength(2);
  lines.add(Array.from({ length: 9 }, (_, at) => line(String(at))));
  expect(lines.all.map(({ text }) => text)).toEqual(["6", "7", "8"]);
  lines.clear();
  expect([lines.all.length, lines.count]).toEqual([0, 13]);
});

test("an endless line is cut", () => {
  const lines = new Lines();
  lines.add([line("x".repeat(TEXT_MAX * 2))]);
  expect(lines.all[0]?.text).toHaveLength(TEXT_MAX + 1);
});

test("a filter looks for text in any case, and for a replica", () => {
  const lines = new Lines();
  lines.add([line("Model LOADED"), line("ready", "r2")]);
  expect(matching(lines.all, "loaded ").map(({ n }) => n)).toEqual([1]);
  expect(matching(lines.all, "", "r2").map(({ n }) => n)).toEqual([2]);
  expect(matching(lines.all, " ")).toBe(lines.all);
});

test("the end is in sight within a row of it", () => {
  expect(isAtEnd({ scrollTop: 590, clientHeight: 400, scrollHeight: 1000 }, 18)).toBe(true);
  expect(isAtEnd({ scrollTop: 500, clientHeight: 400, scrollHeight: 1000 }, 18)).toBe(false);
});
