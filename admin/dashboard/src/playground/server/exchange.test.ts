import { expect, test } from "vitest";

import { Client } from "../../api/client.ts";
import { exchange, type Seen } from "./exchange.ts";
import type { Ready } from "./request.ts";

const READY: Ready = { method: "GET", url: "/fn/web/", headers: [], body: null, wait_s: null, priority: "normal" };

/** The states that the page sees of one exchange; its clock counts the looks at it. */
async function seenOf(answer: (init: RequestInit) => Promise<Response>, ready: Partial<Ready> = {}, signal = new AbortController().signal) {
  const asked: [string, RequestInit][] = [];
  const client = new Client("key", undefined, (input, init = {}) => {
    asked.push([String(input), init]);
    return answer(init);
  });
  const seen: Seen[] = [];
  let now = 0;
  await exchange(client, { ...READY, ...ready }, signal, (one) => seen.push(one), () => now++);
  return { seen, last: seen.at(-1)!, url: asked[0]![0], init: asked[0]![1], headers: new Headers(asked[0]![1].headers) };
}

const events = { headers: { "Content-Type": "text/event-stream" } };
const stream = (pieces: string[], end?: Error) =>
  new ReadableStream({
    pull(controller) {
      const piece = pieces.shift();
      if (piece !== undefined) controller.enqueue(new TextEncoder().encode(piece));
      else if (end) controller.error(end);
      else controller.close();
    },
  });

test("the request is sent as entered, also its Authorization, with the page's key and the chosen options", async () => {
  const body = { method: "PUT" as const, url: "/fn/web/a", headers: [["Authorization", "Basic b"]] as [string, string][], body: "{}" };
  const { url, init, headers } = await seenOf(async () => new Response("ok"), { ...body, wait_s: 3, priority: "low" });
  expect([url, init.method, init.body, init.redirect]).toEqual(["/fn/web/a", "PUT", "{}", "manual"]);
  expect(["Authorization", "Fn-Key", "Prefer", "Priority"].map((name) => headers.get(name))).toEqual(["Basic b", "key", "wait=3", "u=6"]);
});

test("a Prefer of the user's own stands beside the chosen wait", async () => {
  const { headers } = await seenOf(async () => new Response("ok"), { headers: [["prefer", "return=minimal"]], wait_s: 3 });
  expect(headers.get("Prefer")).toBe("wait=3, return=minimal");
});

test("events are seen as they arrive, before the end", async () => {
  const { seen, last } = await seenOf(async () => new Response(stream(["data: 1\n\n", "data: 2\n\n"]), events));
  expect(seen.map(({ phase, eventCount }) => [phase, eventCount])).toEqual([
    ["open", 0],
    ["open", 1],
    ["open", 2],
    ["done", 2],
  ]);
  expect(last.headMs).toBeLessThan(last.firstMs!);
  expect(last).toMatchObject({ status: 200, isEvents: true, size: 18, problem: null });
});

test("an answer that breaks off is told, with what had come", async () => {
  const { last } = await seenOf(async () => new Response(stream(["data: 1\n\n"], new TypeError("network error")), events));
  expect(last).toMatchObject({ phase: "broken", status: 200, eventCount: 1, problem: { title: "The answer broke off" } });
});

test("fngate's own refusal is told; the server's error is shown as it is", async () => {
  const problem = JSON.stringify({ code: "asleep", title: "Asleep", detail: "no rule wakes it" });
  const type = { "Content-Type": "application/problem+json" };
  const own = await seenOf(async () => new Response(problem, { status: 503, headers: type }));
  expect(own.last).toMatchObject({ phase: "done", status: 503, problem: { code: "asleep" } });
  const theirs = await seenOf(async () => new Response("oh", { status: 500, headers: { "Content-Type": "text/plain" } }));
  expect(theirs.last).toMatchObject({ phase: "done", status: 500, problem: null, text: "oh" });
});

test("an abort keeps what had come", async () => {
  const stop = new AbortController();
  const pieces = ["data: 1\n\n"];
  const body = new ReadableStream({
    pull(controller) {
      const piece = pieces.shift();
      if (piece) return controller.enqueue(new TextEncoder().encode(piece));
      stop.abort();
      controller.error(stop.signal.reason);
    },
  });
  const { last } = await seenOf(async () => new Response(body, events), {}, stop.signal);
  expect(last).toMatchObject({ phase: "aborted", eventCount: 1, problem: null });
});

test("no answer and a redirect are told", async () => {
  const none = await seenOf(() => Promise.reject(new TypeError("Failed to fetch")));
  expect(none.last).toMatchObject({ phase: "broken", status: 0, problem: { code: "unreachable" } });
  const away = await seenOf(async () => Object.defineProperty(Response.error(), "type", { value: "opaqueredirect" }));
  expect(away.last).toMatchObject({ phase: "done", problem: { title: "Redirect" } });
});

test("a picture is kept as what it is; a text is none", async () => {
  const picture = async () => new Response(new Uint8Array([1, 2]), { headers: { "Content-Type": "image/png" } });
  const { last } = await seenOf(picture);
  expect([last.media?.type, last.media?.size]).toEqual(["image/png", 2]);
  expect((await seenOf(async () => new Response("x", { headers: { "Content-Type": "text/plain" } }))).last.media).toBeNull();
});
