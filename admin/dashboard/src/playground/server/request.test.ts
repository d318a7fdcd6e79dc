import { expect, test } from "vitest";

import { callOf, curlOf, headersOf, readyOf, urlOf, type Draft } from "./request.ts";

const DRAFT: Draft = { method: "GET", path: "/items?q=1", headers: "", body: "" };
const ready = (draft: Partial<Draft>) => readyOf("web", { ...DRAFT, ...draft }, null, "normal");

test.each([
  ["/items?q=a b", "/fn/web%402/items?q=a%20b"],
  ["/", "/fn/web%402/"],
  ["/a/../b", "/fn/web%402/b"],
  ["/%2e%2e%2fx", "/fn/web%402/%2e%2e%2fx"],
])("the path %s is sent to the function", (path, url) => {
  expect(urlOf("web@2", path)).toEqual({ url });
});

test.each(["items", "", "/../../admin/v1/keys", "/..", "/a#b", "/..\\..\\admin/v1/keys", "/%2e%2e/%2e%2e/admin"])(
  "the path %s would leave the function and is refused",
  (path) => {
    expect(urlOf("web", path)).toHaveProperty("fault");
  },
);

test("headers are lines; those that a page cannot send are told", () => {
  expect(headersOf("Accept: text/event-stream\n\nX-A:b:c ")).toEqual({
    headers: [
      ["Accept", "text/event-stream"],
      ["X-A", "b:c"],
    ],
  });
  for (const line of ["no colon", ": empty", "a b: c", "Cookie: a=b", "fn-key: x", "Sec-Fetch-Site: none", "X: ✓"])
    expect(headersOf(line)).toHaveProperty("fault");
});

test("each fault stands beside its field", () => {
  expect(ready({ path: "x", headers: "x" })).toEqual({
    faults: { path: "a path begins with /", headers: "expected Name: value, got x" },
  });
});

test("only a method with a body sends one", () => {
  expect(ready({ body: "x" })).toMatchObject({ body: null });
  expect(ready({ method: "POST", body: "x" })).toMatchObject({ body: "x" });
  expect(ready({ method: "DELETE" })).toMatchObject({ body: null });
});

test("the curl line is the same request, quoted for a shell, without the key", () => {
  const line = (draft: Partial<Draft>) => {
    const made = ready(draft);
    return "faults" in made ? "" : curlOf(made, "http://h:1");
  };
  const key = '-H "Fn-Key: $FN_KEY"';
  expect(line({})).toBe(`curl -N 'http://h:1/fn/web/items?q=1' ${key}`);
  expect(line({ method: "HEAD", path: "/" })).toBe(`curl -N -I http://h:1/fn/web/ ${key}`);
  expect(line({ method: "POST", path: "/", headers: "Content-Type: a/b", body: "it's" })).toBe(
    `curl -N http://h:1/fn/web/ ${key} -H 'Content-Type: a/b' --data-binary 'it'\\''s'`,
  );
  expect(line({ method: "PUT", path: "/", body: "x" })).toBe(
    `curl -N -X PUT http://h:1/fn/web/ ${key} -H 'Content-Type: text/plain' --data-binary x`,
  );
});

test("a call with a file is a form, whose texts curl does not take for files", () => {
  const form = new FormData();
  form.append("image", new File(["x"], "my cat.png"));
  form.append("note", "@home");
  form.append("k", "3");
  const call = callOf("pic", form, null, "normal");
  expect(call.headers).toEqual([]);
  expect(curlOf(call, "http://h")).toBe(
    `curl -N http://h/fn/pic -H "Fn-Key: $FN_KEY" -F 'image=@my cat.png' --form-string note=@home -F k=3`,
  );
  expect(curlOf(callOf("pic", '{"inputs": {}}', null, "normal"), "http://h")).toContain("-H 'Content-Type: application/json' --data-binary");
});
