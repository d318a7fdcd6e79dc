import { expect, test } from "vitest";

import type { InputRule } from "../api/types.ts";
import { fileBody, formOf, pretty, textBody, textsOf, type Callable } from "./form.ts";

const X = { name: "x", dtype: "FP32", shape: [-1, 2] };
const tensors = (inputs: Record<string, InputRule> = {}, specs = [X]): Callable => ({
  signature: { kind: "tensors", inputs: specs, outputs: [] },
  inputs,
});

test("every tensor has a field with its dtype and shape", () => {
  const form = formOf(tensors());
  expect(form.texts).toEqual([{ name: "x", kind: "tensor", spec: X, hint: "FP32 of shape [-1, 2]" }]);
  expect(form.file).toBeNull();
});

test("a declared picture, sound or file is a field for files", () => {
  const picture = { kind: "image", image: { size: [8, 16], mode: "L", layout: "HW" } } as InputRule;
  const sound = { kind: "audio", audio: { rate_hz: 16000, samples: 16000 } } as InputRule;
  expect(formOf(tensors({ x: picture })).file).toMatchObject({
    accept: "image/*",
    hint: "a picture of any size; it becomes 16 × 8, grey",
  });
  expect(formOf(tensors({ x: sound })).file?.hint).toBe("a sound: WAV, FLAC or Ogg, cut or padded to 1.0 s");
  expect(formOf(tensors({ x: { kind: "bytes", bytes: { length: 512, pad: 0 } } as InputRule })).file?.hint).toMatch("512 bytes");
  expect(formOf(tensors({ x: { kind: "tensor" } as InputRule })).file).toBeNull();
});

test("a file cannot stand for several inputs", () => {
  const sound = { kind: "audio", audio: { rate_hz: 16000, samples: null } } as InputRule;
  expect(formOf(tensors({ x: sound }, [X, { ...X, name: "y" }])).file).toBeNull();
});

test("functions of JSON and of bytes have one field", () => {
  expect(formOf({ signature: { kind: "json", inputs: [], outputs: [] }, inputs: {} }).texts).toHaveLength(1);
  const bytes = formOf({ signature: { kind: "bytes", inputs: [], outputs: [] }, inputs: {} });
  expect(bytes.file).toMatchObject({ name: "body", kind: "bytes", type: "application/octet-stream" });
});

test("texts go out as they were typed", () => {
  const big = { name: "n", dtype: "INT64", shape: [1] };
  const form = formOf(tensors({}, [X, big]));
  const built = textBody(form.texts, { x: " [[1,2]] ", n: "[9007199254740993]" });
  expect(built).toEqual({
    body: { type: "application/json", content: '{"inputs": {"x": [[1,2]], "n": [9007199254740993]}}' },
  });
});

test("what does not fit is told by input", () => {
  const form = formOf(tensors({}, [X, { ...X, name: "y" }]));
  const built = textBody(form.texts, { x: "[[1]]" });
  expect("faults" in built && [...built.faults.keys()]).toEqual(["x", "y"]);
  const uneven = textBody(form.texts, { x: "[[1,2]]", y: "[[1,2],[3,4]]" });
  expect("faults" in uneven && uneven.faults.get("y")?.got).toBe("2 rows");
});

test("a json function takes an object", () => {
  const { texts } = formOf({ signature: { kind: "json", inputs: [], outputs: [] }, inputs: {} });
  expect(textBody(texts, { body: '{"a": 1}' })).toEqual({
    body: { type: "application/json", content: '{"inputs": {"a": 1}}' },
  });
  for (const [text, got] of [
    ["", "nothing"],
    ["[1]", "[1]"],
    ["{", /invalid JSON/],
  ] as const) {
    const built = textBody(texts, { body: text });
    expect("faults" in built && built.faults.get("body")?.got).toMatch(got);
  }
});

test("a file is sent as what it is, if the function takes that", () => {
  const picture = { kind: "image", image: { size: [8, 8], mode: "RGB", layout: "CHW" } } as InputRule;
  const field = formOf(tensors({ x: picture })).file!;
  expect(fileBody(field, new Blob(["x"], { type: "image/webp" })).type).toBe("image/webp");
  expect(fileBody(field, new Blob(["x"])).type).toBe("image/png");
  const bytes = formOf(tensors({ x: { kind: "bytes" } as InputRule })).file!;
  expect(fileBody(bytes, new Blob(["x"], { type: "text/html" })).type).toBe("application/octet-stream");
});

test("a sample fills the fields", () => {
  const form = formOf(tensors({}, [X, { ...X, name: "y" }]));
  expect(textsOf(form.texts, '{"inputs": {"x": [[0,0]], "y": [[1,1]]}}')).toEqual({ x: "[[0, 0]]", y: "[[1, 1]]" });
  const { texts } = formOf({ signature: { kind: "json", inputs: [], outputs: [] }, inputs: {} });
  expect(textsOf(texts, '{"inputs": {"a": "b, c"}}')).toEqual({ body: '{"a":"b, c"}' });
});

test("long values are broken where a reader would", () => {
  const rows = [Array(30).fill(0.25), Array(30).fill(0.5)];
  const lines = pretty(rows).split("\n");
  expect(JSON.parse(pretty(rows))).toEqual(rows);
  expect(Math.max(...lines.map((line) => line.length))).toBeLessThanOrEqual(100);
  expect(lines.length).toBeLessThan(12);
  const mixed = { a: "x".repeat(99), b: [1, 2], c: null };
  expect(JSON.parse(pretty(mixed))).toEqual(mixed);
});
