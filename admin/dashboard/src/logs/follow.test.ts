import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { Client } from "../api/client.ts";
import { follow, plain, read, type Following } from "./follow.ts";
import { Lines } from "./lines.ts";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

const LINES = 'event: lines\ndata: {"replica": "r1", "text": "a\\nb\\n"}\n\n';
const END = 'event: end\ndata: {"replica": "r1"}\n\n';

async function followed(answers: (() => Response)[]): Promise<{ texts: string[]; states: Following[] }> {
  const stop = new AbortController();
  const lines = new Lines();
  const states: Following[] = [];
  const client = new Client("key", undefined, async () => {
    const answer = answers.shift();
    if (answer) return answer();
    stop.abort();
    throw new DOMException("stopped", "AbortError");
  });
  const told = { onLines: () => {}, onState: (state: Following) => states.push(state) };
  const done = follow(client, "digits", lines, told, stop.signal);
  await vi.advanceTimersByTimeAsync(60_000);
  await done;
  return { texts: lines.all.map(({ text }) => text), states };
}

test("lines come one by one, and that a replica is gone", async () => {
  const { texts, states } = await followed([() => new Response(LINES + END)]);
  expect(texts).toEqual(["a", "b", "this replica has ended"]);
  expect(states.map(({ is }) => is)).toEqual(["live", "away"]);
});

test("a stream that broke begins anew", async () => {
  const { texts } = await followed([
    () => new Response(LINES),
    () => new Response("no", { status: 503 }),
    () => new Response(LINES),
  ]);
  expect(texts).toEqual(["a", "b"]);
});

test("a function that is gone is not asked for again", async () => {
  const problem = JSON.stringify({ code: "unknown_function", detail: "no function digits" });
  const { states } = await followed([() => new Response(problem, { status: 404 }), () => new Response(LINES)]);
  expect(states).toEqual([{ is: "ended", why: "no function digits" }]);
});

test("what a terminal would colour is plain text here", () => {
  expect(plain("\u001b[1;31mred\u001b[0m\tx\u0007")).toBe("red\tx");
  expect(read("lines", '{"replica": "r1", "text": "a\\r\\nb"}').map(({ text }) => text)).toEqual(["a", "b"]);
  expect(read("later", '{"replica": "r1"}')).toEqual([]);
});
