import { expect, test } from "vitest";
import { EVENT_MAX, EventParser } from "./sse.ts";

const STREAM = 'id: b-1\nevent: functions\ndata: {"items":[]}\n\n: a comment\nevent: beat\ndata: {}\n\n';
const EVENTS = [
  { type: "functions", id: "b-1", data: '{"items":[]}' },
  { type: "beat", id: null, data: "{}" },
];

test("events come whole, however the stream is cut", () => {
  for (let size = 1; size <= STREAM.length; size += 1) {
    const parser = new EventParser();
    const found = [];
    for (let at = 0; at < STREAM.length; at += size) found.push(...parser.feed(STREAM.slice(at, at + size)));
    expect(found).toEqual(EVENTS);
  }
});

test("all line ends are known, also one that is cut in two", () => {
  for (const end of ["\n", "\r\n", "\r"]) {
    const text = `${STREAM.replaceAll("\n", end)}x`;
    for (const size of [1, 2, 3, 1000]) {
      const parser = new EventParser();
      const found = [];
      for (let at = 0; at < text.length; at += size) found.push(...parser.feed(text.slice(at, at + size)));
      expect(found).toEqual(EVENTS);
    }
  }
});

test("data of several lines is joined, a field without a colon is empty, an unknown one is nothing", () => {
  expect(new EventParser().feed("data: a\ndata\ndata:b\nretry: 5\nelse: 1\n\n")).toEqual([{ type: "message", id: null, data: "a\n\nb" }]);
});

test("an event without data is none, and leaves nothing to the next", () => {
  expect(new EventParser().feed("event: x\nid: 1\n\ndata: y\n\n")).toEqual([{ type: "message", id: null, data: "y" }]);
});

test("an id with a NUL is none", () => {
  expect(new EventParser().feed("id: a\0b\ndata: y\n\n")[0]?.id).toBe(null);
});

test("an event without an end is refused before it fills the memory", () => {
  const parser = new EventParser();
  const feed = () => {
    for (let at = 0; at < EVENT_MAX + 2_000_000; at += 1_000_000) parser.feed(`data: ${"x".repeat(1_000_000)}\n`);
  };
  expect(feed).toThrow(RangeError);
  expect(() => new EventParser().feed("x".repeat(EVENT_MAX + 1))).toThrow(RangeError);
});
