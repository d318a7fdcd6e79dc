import { expect, test } from "vitest";
import { answerOf, curlOf, exampleOf, groupsOf, scopeOf, shapeOf, type OpenApi, type Operation, type Route } from "./document.ts";

const OPERATION: Operation = { operationId: "a", summary: "Do it", tags: ["One"], responses: {} };
const DOCUMENT: OpenApi = {
  info: { title: "t", version: "1" },
  tags: [{ name: "Empty" }, { name: "One" }, { name: "Two" }],
  paths: {
    "/b": { get: { ...OPERATION, tags: ["Two"] } },
    "/a/{name}": { get: OPERATION, post: { ...OPERATION, summary: "Make it" } },
  },
  components: {
    schemas: {
      Node: { type: "object", properties: { next: { anyOf: [{ $ref: "#/components/schemas/Node" }, { type: "null" }] } }, required: [] },
      Pair: { type: "object", properties: { x: { type: "number" }, y: { type: "string" } }, required: ["x"] },
    },
    responses: { no: { description: "No" } },
  },
};
const ref = (name: string) => ({ $ref: `#/components/schemas/${name}` });
const route = (method: string, operation: Partial<Operation>, path = "/a/{name}"): Route => ({ method, path, operation: { ...OPERATION, ...operation } });

test("routes are grouped in the order of the tags, without empty groups", () => {
  expect(groupsOf(DOCUMENT).map((group) => [group.name, group.routes.length])).toEqual([
    ["One", 2],
    ["Two", 1],
  ]);
});

test("a search finds words in path, method, summary and group", () => {
  expect(groupsOf(DOCUMENT, "make IT").flatMap((group) => group.routes.map((one) => one.method))).toEqual(["POST"]);
  expect(groupsOf(DOCUMENT, "two")[0]?.routes[0]?.path).toBe("/b");
  expect(groupsOf(DOCUMENT, "nothing")).toEqual([]);
});

test("the scope of a route, and whether a server without keys is open", () => {
  expect(scopeOf(OPERATION)).toEqual({ scope: "", isOpen: false });
  expect(scopeOf({ ...OPERATION, security: [{ key: ["read"] }] })).toEqual({ scope: "read", isOpen: false });
  expect(scopeOf({ ...OPERATION, security: [{}, { key: ["invoke"] }] })).toEqual({ scope: "invoke", isOpen: true });
});

test("a reference to an answer is followed", () => {
  expect(answerOf(DOCUMENT, { $ref: "#/components/responses/no" }).description).toBe("No");
  expect(answerOf(DOCUMENT, { description: "Yes" }).description).toBe("Yes");
});

test("schemas are shown as types", () => {
  expect(shapeOf(ref("Pair"), DOCUMENT)).toBe("{ x: number, y?: string }");
  expect(shapeOf({ type: "array", items: { type: ["number", "null"] } }, DOCUMENT)).toBe("(number | null)[]");
  expect(shapeOf({ enum: ["a", "b"] }, DOCUMENT)).toBe('"a" | "b"');
  expect(shapeOf({ type: "object", additionalProperties: { type: "integer" } }, DOCUMENT)).toBe("{ [name]: integer }");
  expect(shapeOf({}, DOCUMENT)).toBe("any");
});

test("a type that contains itself ends with its name", () => {
  expect(shapeOf(ref("Node"), DOCUMENT)).toBe("{ next?: Node | null }");
});

test("a long object has a line for each member", () => {
  const names = ["first_member", "second_member", "third_member", "fourth_member"];
  const schema = { properties: Object.fromEntries(names.map((name) => [name, { type: "string" }])), required: names };
  expect(shapeOf(schema, DOCUMENT).split("\n")).toHaveLength(6);
});

test("an example has what is required", () => {
  expect(exampleOf({ schema: ref("Pair") }, DOCUMENT)).toEqual({ x: 0 });
  expect(exampleOf({ schema: ref("Pair"), example: { x: 2 } }, DOCUMENT)).toEqual({ x: 2 });
});

test("curl lines can be pasted into a shell", () => {
  const json = { requestBody: { content: { "application/json": { example: { text: "it's" } } } }, security: [{ key: ["deploy"] }] };
  expect(curlOf(route("GET", {}), DOCUMENT, "http://h")).toBe("curl http://h/a/NAME");
  expect(curlOf(route("POST", json), DOCUMENT, "http://h")).toBe(
    `curl -H "Authorization: Bearer $KEY" -H 'Content-Type: application/json' -d '{"text":"it'\\''s"}' http://h/a/NAME`,
  );
  const asked = { parameters: [{ name: "alias", in: "query", required: true }] };
  expect(curlOf(route("DELETE", asked, "/b"), DOCUMENT, "http://h")).toBe("curl -X DELETE 'http://h/b?alias=ALIAS'");
});
