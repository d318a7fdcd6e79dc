import { expect, test } from "vitest";

import { bars, READ_MAX, shownOf, SHOWN_MAX, topOf } from "./answer.ts";

const bytes = (text: string) => new TextEncoder().encode(text);

test("labels are found where the answer has them", () => {
  const row = [
    { label: "7", score: 0.9 },
    { label: "1", score: 0.1 },
  ];
  const shown = shownOf("application/json", bytes(JSON.stringify({ outputs: {}, top: [row], revision: "digits@1" })));
  expect(shown.top).toEqual([row]);
  expect(shown.cut).toBe(0);
  for (const odd of [null, 3, {}, { top: 3 }, { top: [3, [null, { label: 1, score: 2 }]] }]) {
    expect(topOf(odd).flat()).toEqual([]);
  }
});

test("bars are shares where scores are", () => {
  const row = (...scores: number[]) => scores.map((score) => ({ label: "", score }));
  expect(bars(row(0.7, 0.2))).toEqual([0.7, 0.2]);
  expect(bars(row(10, 5))).toEqual([1, 0.5]);
  expect(bars(row(-1, -3))).toEqual([2 / 2, 0]);
  expect(bars(row(0, 0))).toEqual([0, 0]);
});

test("a huge answer is cut, and a larger one is not even read", () => {
  const long = JSON.stringify({ outputs: { y: Array(40_000).fill(0.5) } });
  const shown = shownOf("application/json; charset=utf-8", bytes(long));
  expect(shown.text).toHaveLength(SHOWN_MAX);
  expect(shown.cut).toBeGreaterThan(0);
  const huge = new Uint8Array(READ_MAX + 1).fill(65);
  expect(shownOf("application/json", huge)).toEqual({
    top: [],
    text: "A".repeat(SHOWN_MAX),
    cut: READ_MAX + 1 - SHOWN_MAX,
  });
});

test("broken JSON and text are shown as they came", () => {
  expect(shownOf("application/json", bytes("{")).text).toBe("{");
  expect(shownOf("text/plain", bytes("oh")).text).toBe("oh");
});

test("other bytes are shown in hexadecimal, their beginning", () => {
  const shown = shownOf("application/octet-stream", bytes("GIF89a\0\n").slice());
  expect(shown.text).toMatch(/^0000 {2}47 49 46 38 39 61 00 0a +GIF89a··$/);
  expect(shownOf("", new Uint8Array(300)).cut).toBe(44);
});
