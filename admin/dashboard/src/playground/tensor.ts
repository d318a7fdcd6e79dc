/** Validation of JSON text against a tensor's dtype and shape, with the server's error wording. */

import type { TensorSpec } from "../api/types.ts";

export interface Fault {
  expected: string;
  got: string;
}

export type Checked = { shape: number[] } | { fault: Fault };

const FLOAT_MAX: Record<string, number> = {
  FP16: 65504,
  BF16: 3.3895313892515355e38,
  FP32: 3.4028234663852886e38,
  FP64: Number.MAX_VALUE,
};

const SHOWN_MAX = 60;

/** "FP32 of shape [-1, 3]". */
export function described(spec: TensorSpec): string {
  if (spec.shape === null) return `${spec.dtype} of any shape`;
  return `${spec.dtype} of shape [${spec.shape.join(", ")}]`;
}

/** Validate `text` against `spec`. Returns its shape, or what was expected and what was found. */
export function checkText(text: string, spec: TensorSpec): Checked {
  if (text.trim() === "") return fault(described(spec), "nothing");
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return fault(described(spec), `invalid JSON: ${(error as Error).message}`);
  }
  return checkValue(value, spec);
}

/** Validate `value` against `spec`. Lists along a dynamic axis must have equal lengths. */
export function checkValue(value: unknown, spec: TensorSpec): Checked {
  const shape: number[] = [];
  const found = walk(value, spec, spec.shape ?? dynamic(value), 0, [], shape);
  return found ? { fault: found } : { shape };
}

/** Inputs with a dynamic first axis must have equal rows. Returns the first that differs, by name. */
export function checkRows(shapes: Map<string, number[]>, specs: TensorSpec[]): [string, Fault] | null {
  let first: [string, number] | null = null;
  for (const spec of specs) {
    const rows = shapes.get(spec.name)?.[0];
    if (spec.shape?.[0] !== -1 || rows === undefined) continue;
    if (first === null) first = [spec.name, rows];
    else if (rows !== first[1]) {
      return [spec.name, { expected: `${first[1]} rows like input '${first[0]}'`, got: `${rows} rows` }];
    }
  }
  return null;
}

/** The shape of a tensor whose rank is that of `value`: as many axes as lists begin before its first element. */
function dynamic(value: unknown): number[] {
  const axes: number[] = [];
  for (let first = value; Array.isArray(first); first = first[0]) axes.push(-1);
  return axes;
}

function walk(
  value: unknown,
  spec: TensorSpec,
  declared: number[],
  axis: number,
  at: number[],
  shape: number[],
): Fault | null {
  if (axis === declared.length) return element(value, spec.dtype, at);
  const wanted = declared[axis] as number;
  if (!Array.isArray(value)) return { expected: `a list${place(at)} for ${described(spec)}`, got: kind(value) };
  if (value.length === 0) return { expected: `at least one item${place(at)}`, got: "an empty list" };
  if (wanted !== -1 && value.length !== wanted) {
    return { expected: `${wanted} items${place(at)} for ${described(spec)}`, got: `${value.length}` };
  }
  const known = shape[axis];
  if (known !== undefined && known !== value.length) {
    return { expected: `lists of one length on axis ${axis}`, got: `lengths ${known} and ${value.length}` };
  }
  shape[axis] = value.length;
  for (let index = 0; index < value.length; index += 1) {
    at.push(index);
    const found = walk(value[index], spec, declared, axis + 1, at, shape);
    if (found) return found;
    at.pop();
  }
  return null;
}

function element(value: unknown, dtype: string, at: number[]): Fault | null {
  if (dtype === "BYTES") return typeof value === "string" ? null : wrong("a string", value, at);
  if (dtype === "BOOL") return typeof value === "boolean" ? null : wrong("true or false", value, at);
  if (typeof value !== "number") return wrong(`a number for ${dtype}`, value, at);
  const largest = FLOAT_MAX[dtype];
  if (largest !== undefined) {
    return Math.abs(value) <= largest ? null : wrong(`a number within ${dtype}`, value, at);
  }
  if (!Number.isInteger(value)) return wrong(`an integer for ${dtype}`, value, at);
  const [low, high] = integerRange(dtype);
  // Beyond 2^53 a parsed number is rounded: the server checks the limits of 64-bit types.
  return value >= low && value <= high ? null : wrong(`an integer from ${low} to ${high}`, value, at);
}

function integerRange(dtype: string): [number, number] {
  const bits = Number(dtype.replace(/^U?INT/, ""));
  return dtype.startsWith("U") ? [0, 2 ** bits - 1] : [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1];
}

function wrong(expected: string, value: unknown, at: number[]): Fault {
  return { expected: `${expected}${place(at)}`, got: kind(value) };
}

function place(at: number[]): string {
  return at.length ? ` at [${at.join("][")}]` : "";
}

function kind(value: unknown): string {
  if (value === null) return "null";
  if (Array.isArray(value)) return "a list";
  if (typeof value === "object") return "an object";
  const text = JSON.stringify(value);
  return text.length > SHOWN_MAX ? `${text.slice(0, SHOWN_MAX)}…` : text;
}

function fault(expected: string, got: string): Checked {
  return { fault: { expected, got } };
}
