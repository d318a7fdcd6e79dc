import { expect, test } from "vitest";

import { Client } from "../api/client.ts";
import { READ_MAX } from "./answer.ts";
import { invoke, type Asked } from "./call.ts";

const ASKED: Asked = { body: { type: "application/json", content: "{}" }, wait_s: null, priority: "normal" };

function asked(answer: () => Response | Promise<Response>) {
  const seen: [string, RequestInit][] = [];
  const client = new Client("key", undefined, async (input, init) => {
    seen.push([String(input), init ?? {}]);
    return answer();
  });
  return { client, seen };
}

const never = () => new AbortController().signal;

test("a call has its options as headers", async () => {
  const { client, seen } = asked(() => new Response("{}"));
  await invoke(client, "digits@2", { ...ASKED, wait_s: 5, priority: "high" }, never());
  const [path, init] = seen[0]!;
  const headers = new Headers(init.headers);
  expect(path).toBe("/fn/digits%402");
  expect(["Prefer", "Priority", "Content-Type"].map((name) => headers.get(name))).toEqual([
    "wait=5",
    "u=1",
    "application/json",
  ]);
});

test("an answer comes with its receipt", async () => {
  const headers = {
    "Content-Type": "application/json",
    "Fn-Revision": "digits@2",
    "X-Request-Id": "id1",
    "Server-Timing": "queue;dur=1.000, compute;dur=2.000",
  };
  const { client } = asked(() => new Response('{"outputs": {"y": [1]}}', { headers }));
  const outcome = await invoke(client, "digits", ASKED, never());
  expect([outcome.status, outcome.revision, outcome.request_id, outcome.size]).toEqual([200, "digits@2", "id1", 23]);
  expect(outcome.receipt?.totalMs).toBe(3);
  expect(outcome.shown.text).toContain("outputs");
  expect(outcome.problem).toBeNull();
});

test("a refusal is told as a problem", async () => {
  const problem = { code: "bad_input", detail: "x: expected", input: "x", expected: "a list", got: "3" };
  const { client } = asked(() => new Response(JSON.stringify(problem), { status: 400 }));
  const outcome = await invoke(client, "digits", ASKED, never());
  expect(outcome.problem?.code).toBe("bad_input");
  expect(outcome.problem?.more["input"]).toBe("x");
});

test("no answer is told, and one that was given up is thrown", async () => {
  const { client } = asked(() => Promise.reject(new TypeError("Failed to fetch")));
  expect(await invoke(client, "digits", ASKED, never())).toMatchObject({ status: 0, problem: { code: "unreachable" } });
  await expect(invoke(client, "digits", ASKED, AbortSignal.abort())).rejects.toThrow();
});

test("an endless answer is read no further than its limit", async () => {
  const piece = new Uint8Array(2 ** 20).fill(65);
  const endless = new ReadableStream({ pull: (controller) => controller.enqueue(piece) });
  const { client } = asked(() => new Response(endless, { headers: { "Content-Type": "text/plain" } }));
  const outcome = await invoke(client, "digits", ASKED, never());
  expect(outcome.size).toBeGreaterThan(READ_MAX);
  expect(outcome.size).toBeLessThan(READ_MAX * 2);
});
