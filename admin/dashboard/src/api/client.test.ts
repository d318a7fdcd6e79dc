import { expect, test, vi } from "vitest";
import { Client, functionPath } from "./client.ts";
import { Problem, wordsOf } from "./problem.ts";

const client = (response: Response | Error, refused = vi.fn()) => {
  const fetcher = vi.fn((..._asked: unknown[]) => (response instanceof Error ? Promise.reject(response) : Promise.resolve(response)));
  return { client: new Client("k", refused, fetcher as unknown as typeof fetch), fetcher, refused };
};

test("a key is sent as a bearer, JSON with its type", async () => {
  const { client: one, fetcher } = client(new Response('{"a":1}', { headers: { ETag: '"v1"' } }));
  expect(await one.ask("/functions/x", { method: "PATCH", json: { min: 1 } })).toEqual({ data: { a: 1 }, etag: '"v1"' });
  const [path, init] = fetcher.mock.calls[0] as unknown as [string, RequestInit];
  const headers = new Headers(init.headers);
  expect([path, init.method, init.body]).toEqual(["/admin/v1/functions/x", "PATCH", '{"min":1}']);
  expect([headers.get("Authorization"), headers.get("Content-Type")]).toEqual(["Bearer k", "application/json"]);
});

test("a problem has the server's words", async () => {
  const body = JSON.stringify({ title: "Queue full", detail: "64 wait", code: "queue_full", retry_after_s: 2 });
  const { client: one, refused } = client(new Response(body, { status: 429 }));
  const problem = await one.get("/x").catch((error: unknown) => error);
  expect(problem).toBeInstanceOf(Problem);
  expect(problem).toMatchObject({ status: 429, code: "queue_full", message: "64 wait", more: { retry_after_s: 2 } });
  expect(refused).not.toHaveBeenCalled();
});

test("a refused key is told of, and what is no JSON is shown as it is", async () => {
  const { client: one, refused } = client(new Response("<h1>no</h1>", { status: 401 }));
  await expect(one.get("/x")).rejects.toMatchObject({ title: "HTTP 401", detail: "<h1>no</h1>" });
  expect(refused).toHaveBeenCalledOnce();
});

test("a server that is away is no answer", async () => {
  const { client: one } = client(new TypeError("failed"));
  await expect(one.get("/x")).rejects.toMatchObject({ status: 0, code: "unreachable" });
  expect(wordsOf("odd")).toBe("odd");
});

test("a name is one part of a path", () => {
  expect(functionPath("a/b")).toBe("/functions/a%2Fb");
});
