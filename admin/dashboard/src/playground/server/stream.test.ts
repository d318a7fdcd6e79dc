import { expect, test } from "vitest";

import { SHOWN_MAX } from "../answer.ts";
import { Collected, DATA_MAX, EVENTS_MAX } from "./stream.ts";

const utf8 = (text: string) => new TextEncoder().encode(text);

test("events come one by one, with the time of their last byte", () => {
  const collected = new Collected("text/event-stream; charset=utf-8");
  collected.feed(utf8("data: a\n\nevent: tick\nda"), 10);
  expect(collected.events).toEqual([{ n: 1, at_ms: 10, type: "message", data: "a" }]);
  collected.feed(utf8("ta: b\n\n: comment\n\n"), 25);
  expect(collected.events[1]).toEqual({ n: 2, at_ms: 25, type: "tick", data: "b" });
  expect([collected.firstMs, collected.eventCount, collected.isEvents]).toEqual([10, 2, true]);
});

test("only the newest events and the start of long data are kept", () => {
  const collected = new Collected("text/event-stream");
  for (let at = 0; at < EVENTS_MAX + 3; at += 1) collected.feed(utf8(`data: ${at}\n\n`), at);
  expect([collected.events.length, collected.events[0]?.n, collected.eventCount]).toEqual([EVENTS_MAX, 4, EVENTS_MAX + 3]);
  collected.feed(utf8(`data: ${"x".repeat(DATA_MAX * 2)}\n\n`), 0);
  expect(collected.events.at(-1)?.data).toHaveLength(DATA_MAX + 1);
});

test("a character in two pieces is one, and the end of long text is shown", () => {
  const collected = new Collected("text/plain");
  const [first, ...rest] = utf8("é");
  collected.feed(Uint8Array.of(first!), 0);
  collected.feed(Uint8Array.from(rest), 0);
  expect([collected.soFar, collected.whole()]).toEqual(["é", { text: "é", cut: 0 }]);
  collected.feed(utf8("a".repeat(SHOWN_MAX)), 0);
  expect(collected.whole()).toEqual({ text: "a".repeat(SHOWN_MAX), cut: 2 });
});

test("JSON is shown laid out, other bytes as hex", () => {
  const json = new Collected("application/json");
  json.feed(utf8('{"a":'), 0);
  json.feed(utf8("1}"), 0);
  expect(json.soFar).toBe("");
  expect(json.whole().text).toBe('{"a":1}');
  const picture = new Collected("image/png");
  picture.feed(Uint8Array.of(0x89, 0x50), 0);
  expect(picture.whole().text).toContain("89 50");
});
