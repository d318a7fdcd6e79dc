/** The form for a signature, and the request body that it produces. */

import type { InputRule, Signature, TensorSpec } from "../api/types.ts";
import { checkRows, checkText, described, type Fault } from "./tensor.ts";

export type FieldKind = "tensor" | "json" | "image" | "audio" | "bytes";

/** The parts of a function that define its form. */
export interface Callable {
  signature: Signature;
  inputs: Record<string, InputRule>;
}

/** A field of the body, entered as JSON text. */
export interface TextField {
  name: string;
  kind: "tensor" | "json";
  spec: TensorSpec | null;
  hint: string;
}

/** A file that is the whole body. */
export interface FileField {
  name: string;
  kind: "image" | "audio" | "bytes";
  /** For <input accept>. */
  accept: string;
  /** Content type of a file that has none. */
  type: string;
  hint: string;
}

export interface Form {
  texts: TextField[];
  /** The file input if the function accepts a raw file; `texts` are then the alternative. */
  file: FileField | null;
}

/** Content type and body of a request. */
export interface Body {
  type: string;
  content: string | Blob;
}

export type Built = { body: Body } | { faults: Map<string, Fault> };

/** Name of a json function's only field, and key of errors of the whole body. */
export const BODY = "body";

export function formOf({ signature, inputs }: Callable): Form {
  if (signature.kind === "bytes") {
    const name = signature.inputs[0]?.name ?? BODY;
    return { texts: [], file: { name, kind: "bytes", accept: "", type: OCTETS, hint: "any bytes, as they are" } };
  }
  if (signature.kind === "json") {
    const known = signature.inputs.map((spec) => spec.name).join(", ");
    const hint = known ? `a JSON object of the inputs ${known}` : "a JSON object of inputs";
    return { texts: [{ name: BODY, kind: "json", spec: null, hint }], file: null };
  }
  const texts = signature.inputs.map((spec): TextField => ({
    name: spec.name,
    kind: "tensor",
    spec,
    hint: described(spec),
  }));
  const [only] = signature.inputs;
  const rule = only && signature.inputs.length === 1 ? inputs[only.name] : undefined;
  return { texts, file: only && rule ? fileOf(only.name, rule) : null };
}

const OCTETS = "application/octet-stream";

function fileOf(name: string, rule: InputRule): FileField | null {
  if (rule.kind === "image" && rule.image) {
    const [height, width] = rule.image.size;
    const mode = rule.image.mode === "L" ? "grey" : rule.image.mode;
    const hint = `a picture of any size; it becomes ${width} × ${height}, ${mode}`;
    return { name, kind: "image", accept: "image/*", type: "image/png", hint };
  }
  if (rule.kind === "audio" && rule.audio) {
    const { rate_hz, samples } = rule.audio;
    const length = samples === null ? "" : `, cut or padded to ${(samples / rate_hz).toPrecision(2)} s`;
    return { name, kind: "audio", accept: "audio/*", type: "audio/wav", hint: `a sound: WAV, FLAC or Ogg${length}` };
  }
  if (rule.kind === "bytes") {
    const length = rule.bytes?.length ?? null;
    const hint = length === null ? "any file" : `any file; its first ${length} bytes count`;
    return { name, kind: "bytes", accept: "", type: OCTETS, hint };
  }
  return null;
}

/** The file as the request's body. */
export function fileBody(field: FileField, file: Blob): Body {
  const isOfKind = field.kind !== "bytes" && file.type.startsWith(`${field.kind}/`);
  return { type: isOfKind ? file.type : field.type, content: file };
}

/**
 * The request body made of the fields' texts. They are sent as entered, since a 64-bit number
 * would lose digits in JavaScript.
 */
export function textBody(fields: TextField[], texts: Record<string, string>): Built {
  const faults = new Map<string, Fault>();
  const shapes = new Map<string, number[]>();
  for (const field of fields) {
    const text = texts[field.name] ?? "";
    const fault = field.spec === null ? objectFault(text) : tensorFault(text, field.spec, shapes);
    if (fault) faults.set(field.name, fault);
  }
  if (!faults.size) {
    const uneven = checkRows(shapes, specsOf(fields));
    if (uneven) faults.set(...uneven);
  }
  if (faults.size) return { faults };
  const [only] = fields;
  const inputs =
    only?.kind === "json"
      ? (texts[only.name] ?? "").trim()
      : `{${fields.map((field) => `${JSON.stringify(field.name)}: ${(texts[field.name] ?? "").trim()}`).join(", ")}}`;
  return { body: { type: "application/json", content: `{"inputs": ${inputs}}` } };
}

function specsOf(fields: TextField[]): TensorSpec[] {
  return fields.flatMap((field) => (field.spec ? [field.spec] : []));
}

function tensorFault(text: string, spec: TensorSpec, shapes: Map<string, number[]>): Fault | null {
  const checked = checkText(text, spec);
  if ("fault" in checked) return checked.fault;
  shapes.set(spec.name, checked.shape);
  return null;
}

function objectFault(text: string): Fault | null {
  const expected = "a JSON object";
  try {
    const value: unknown = JSON.parse(text.trim() || "null");
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return null;
    return { expected, got: text.trim() ? text.trim().slice(0, 60) : "nothing" };
  } catch (error) {
    return { expected, got: `invalid JSON: ${(error as Error).message}` };
  }
}

/** The fields' texts for a JSON sample, `{"inputs": {...}}`. */
export function textsOf(fields: TextField[], sample: string): Record<string, string> {
  const { inputs } = JSON.parse(sample) as { inputs: Record<string, unknown> };
  return Object.fromEntries(
    fields.map((field) => [field.name, pretty(field.kind === "json" ? inputs : inputs[field.name])]),
  );
}

const LINE_MAX = 100;

/** JSON text with the innermost lists on one line where they fit. */
export function pretty(value: unknown, indent = ""): string {
  const flat = JSON.stringify(value) ?? "null";
  if (flat.length + indent.length <= LINE_MAX || typeof value !== "object" || value === null) return spaced(flat);
  const inner = `${indent}  `;
  if (Array.isArray(value)) {
    if (value.every((item) => typeof item !== "object")) return wrapped(value, indent);
    return `[\n${value.map((item) => inner + pretty(item, inner)).join(",\n")}\n${indent}]`;
  }
  const entries = Object.entries(value).map(([key, item]) => `${inner}${JSON.stringify(key)}: ${pretty(item, inner)}`);
  return `{\n${entries.join(",\n")}\n${indent}}`;
}

function wrapped(values: unknown[], indent: string): string {
  const lines: string[] = [];
  let line = "";
  for (const value of values) {
    const text = `${JSON.stringify(value)}, `;
    if (line && indent.length + line.length + text.length > LINE_MAX) {
      lines.push(line.trimEnd());
      line = "";
    }
    line += text;
  }
  lines.push(line.slice(0, -2));
  return `[\n${lines.map((text) => `${indent}  ${text}`).join("\n")}\n${indent}]`;
}

/** Add a space after every comma between numbers; lists that contain text stay unchanged. */
function spaced(flat: string): string {
  return flat.includes('"') ? flat : flat.replaceAll(",", ", ");
}
