import { expect, test } from "vitest";

import type { InputRule } from "../api/types.ts";
import { bodyOf, inputsOf, textsOfInputs, type InputField, type Schema } from "./schema.ts";

const FILE = { type: "string", contentEncoding: "base64", contentMediaType: "image/*" };
const NONE = { signature: { kind: "json" as const, inputs: [], outputs: [] }, inputs: {} };

const described = (properties: Schema, required: string[] = [], more: Schema = {}) => ({
  ...NONE,
  schema: { inputs: { type: "object", properties, required, additionalProperties: false }, output: null, ...more },
});

const one = (schema: Schema, more: Schema = {}): InputField => inputsOf(described({ a: schema }, ["a"], more))![0]!;

const sent = (schema: Schema, text: string) => {
  const made = bodyOf([one(schema)], { texts: { a: text }, files: {} });
  return "faults" in made ? `expected ${made.faults.get("a")?.expected}` : made.body;
};

test.each<[Schema, string, string]>([
  [{ type: "string" }, "text", "a text"],
  [{ type: "integer" }, "integer", "an integer"],
  [{ enum: ["x", 1] }, "choice", "one of its values"],
  [FILE, "file", "a file of image/*"],
  [{ type: "array", items: FILE }, "file", "files of image/*"],
  [{ type: "array", items: { type: "number" } }, "json", "a JSON list"],
  [{ anyOf: [{ type: "boolean" }, { type: "null" }] }, "boolean", "true or false"],
  [{ anyOf: [{ type: "string" }, { type: "integer" }] }, "any", "JSON or a text"],
  [{ $ref: "#/$defs/A" }, "json", "JSON"],
  [{ $ref: "#/$defs/B" }, "any", "JSON or a text"],
  [{ $ref: "#/$defs/__proto__" }, "any", "JSON or a text"],
  [{}, "any", "JSON or a text"],
])("the schema %j is a field", (schema, kind, hint) => {
  const $defs = { A: { type: "object" }, B: { $ref: "#/$defs/B" } };
  expect(one(schema, { $defs })).toMatchObject({ kind, hint, isRequired: true });
});

test("optional inputs tell what stands for nothing, and are left out", () => {
  const fields = inputsOf(described({ a: { type: "integer", default: 3 }, b: { type: "string" } }))!;
  expect(fields.map(({ hint }) => hint)).toEqual(["an integer, 3 if empty", "a text, may be left out"]);
  expect(bodyOf(fields, { texts: { b: "" }, files: {} })).toEqual({ body: '{"inputs": {}}' });
});

test("inputs without names have no fields; tensors have those of the signature", () => {
  expect(inputsOf({ ...NONE, schema: null })).toBeNull();
  expect(inputsOf({ ...NONE, schema: { inputs: { type: "object" } } })).toBeNull();
  expect(inputsOf(described({}))).toEqual([]);
  const signature = { kind: "tensors" as const, inputs: [{ name: "x", dtype: "FP32", shape: [-1] }], outputs: [] };
  expect(inputsOf({ signature, inputs: { x: { kind: "image" } as InputRule }, schema: null })).toMatchObject([{ name: "x", kind: "file", media: "image/*" }]);
  expect(inputsOf({ signature, inputs: {}, schema: null })).toMatchObject([{ kind: "json", hint: "FP32 of shape [-1]" }]);
});

test.each<[Schema, string, string]>([
  [{ type: "string" }, "5", '{"inputs": {"a": "5"}}'],
  [{ type: "string" }, "", '{"inputs": {"a": ""}}'],
  [{ type: "integer" }, "12345678901234567890", '{"inputs": {"a": 12345678901234567890}}'],
  [{ type: "integer" }, "1.5", "expected an integer"],
  [{ type: "number" }, "1e3", '{"inputs": {"a": 1e3}}'],
  [{ type: "number" }, "x", "expected a number"],
  [{ type: "boolean" }, "true", '{"inputs": {"a": true}}'],
  [{ enum: ["x", 1] }, '"x"', '{"inputs": {"a": "x"}}'],
  [{ enum: ["x", 1] }, "", 'expected one of "x", 1'],
  [{ type: "array", items: {} }, "{}", "expected a JSON list"],
  [{ type: "object" }, "{", "expected JSON"],
  [{ anyOf: [{ type: "integer" }, { type: "null" }] }, "null", '{"inputs": {"a": null}}'],
  [{}, "free text", '{"inputs": {"a": "free text"}}'],
  [FILE, "", "expected a file"],
])("for %j the text %s becomes %s", (schema, text, body) => {
  expect(sent(schema, text)).toBe(body);
});

test("with a file the call is a form, of which lists have a part for each item", () => {
  const fields = inputsOf(described({ file: FILE, name: { type: "string" }, tags: { type: "array", items: {} }, k: { type: "integer" } }))!;
  const made = bodyOf(fields, { texts: { name: "a", tags: '["x", {"y": 1}]', k: "2" }, files: { file: [new File(["x"], "x.png"), new File(["y"], "y.png")] } });
  const form = ("body" in made && made.body) as FormData;
  expect([...form].map(([name, value]) => [name, typeof value === "string" ? value : value.name])).toEqual([
    ["file", "x.png"],
    ["file", "y.png"],
    ["name", "a"],
    ["tags", "x"],
    ["tags", '{"y":1}'],
    ["k", "2"],
  ]);
});

test("a sample is typed as it would be by hand", () => {
  const fields = inputsOf(described({ a: { type: "string" }, b: { type: "array", items: {} }, f: FILE }))!;
  expect(textsOfInputs(fields, { a: "x", b: [1], f: "@x.png", z: 1 })).toEqual({ a: "x", b: "[1]" });
});

test("names of the function's choice are names only", () => {
  const names = ["constructor", "__proto__", "toString"];
  const fields = inputsOf(described(Object.fromEntries(names.map((name) => [name, { type: "string" }]))))!;
  expect(fields.map(({ name }) => name)).toEqual(names);
  expect(bodyOf(fields, { texts: {}, files: {} })).toEqual({ body: '{"inputs": {}}' });
  const texts = Object.fromEntries(names.map((name) => [name, "a"]));
  expect(bodyOf(fields, { texts, files: {} })).toEqual({ body: '{"inputs": {"constructor": "a", "__proto__": "a", "toString": "a"}}' });
});
