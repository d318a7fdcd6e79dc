/** The inputs of a Python function as fields, from its JSON Schema, and the body that they make. */

import type { FunctionDetail } from "../api/types.ts";
import { described, type Fault } from "./tensor.ts";

export type Schema = Record<string, unknown>;
export type InputKind = "text" | "integer" | "number" | "boolean" | "choice" | "file" | "json" | "any";

/** One input. */
export interface InputField {
  name: string;
  kind: InputKind;
  isRequired: boolean;
  choices: unknown[];
  /** Content type of a file; "" for any. */
  media: string;
  /** A list: each part of a form is one of its items. */
  isMany: boolean;
  isNullable: boolean;
  /** What is taken, and what stands for nothing. */
  hint: string;
}

/** What was typed and chosen, by input. */
export interface Given {
  texts: Record<string, string>;
  files: Record<string, File[]>;
}

export type Made = { body: string | FormData } | { faults: Map<string, Fault> };

/** What a record has under a name of the function's choice, such as "constructor". */
export function own<T>(record: Record<string, T>, name: string): T | undefined {
  return Object.hasOwn(record, name) ? record[name] : undefined;
}

/** References that are followed. */
const DEPTH_MAX = 8;
/** Maximum inputs that are shown as fields. */
const FIELDS_MAX = 200;
const HINT_MAX = 60;
const REF = "#/$defs/";
const NOUN: Record<InputKind, string> = {
  text: "a text",
  integer: "an integer",
  number: "a number",
  boolean: "true or false",
  choice: "one of its values",
  file: "a file",
  json: "JSON",
  any: "JSON or a text",
};
const LISTS: Partial<Record<InputKind, string>> = { json: "a JSON list", file: "files" };
const KINDS: Record<string, InputKind> = {
  string: "text",
  integer: "integer",
  number: "number",
  boolean: "boolean",
  array: "json",
  object: "json",
};

type Described = Pick<FunctionDetail, "schema" | "signature" | "inputs">;

/** The inputs that a function's schema names; null if it names none, so that any may be sent. */
export function inputsOf({ schema, signature, inputs }: Described): InputField[] | null {
  if (signature.kind === "tensors") {
    return signature.inputs.map((spec) => {
      const rule = own(inputs, spec.name)?.kind ?? "tensor";
      const isFile = rule === "image" || rule === "audio" || rule === "bytes";
      const media = rule === "image" || rule === "audio" ? `${rule}/*` : "";
      return { ...EMPTY, name: spec.name, kind: isFile ? "file" : "json", isRequired: true, media, hint: described(spec) };
    });
  }
  if (!schema) return null;
  const defs = part(schema, "$defs");
  const all = resolved(schema["inputs"], defs);
  const members = part(all, "properties");
  const required = Array.isArray(all["required"]) ? all["required"] : [];
  const names = Object.keys(members);
  if (!names.length || names.length > FIELDS_MAX) return all["additionalProperties"] === false && !names.length ? [] : null;
  return names.map((name) => fieldOf(name, part(members, name), defs, required.includes(name)));
}

const EMPTY: Omit<InputField, "name" | "kind" | "isRequired"> = {
  choices: [],
  media: "",
  isMany: false,
  isNullable: false,
  hint: "",
};

function fieldOf(name: string, given: Schema, defs: Schema, isRequired: boolean): InputField {
  let schema = resolved(given, defs);
  const own = Array.isArray(schema["type"]) ? schema["type"].map((type) => ({ ...schema, type })) : [];
  const options = [...listOf(schema, "anyOf").map((one) => resolved(one, defs)), ...own];
  const others = options.filter((one) => one["type"] !== "null");
  const found: InputField = { ...EMPTY, name, kind: "any", isRequired, isNullable: others.length < options.length };
  const [only] = others;
  if (only && others.length === 1) schema = only;
  else if (only) found.kind = others.some((one) => one["type"] === "string") ? "any" : "json";
  if (others.length < 2) Object.assign(found, kindOf(schema, defs));
  const usual = "default" in given ? cut(JSON.stringify(given["default"])) : "";
  const noun = (found.isMany ? LISTS[found.kind] : undefined) ?? NOUN[found.kind];
  const of = found.media ? ` of ${found.media}` : "";
  return { ...found, hint: `${noun}${of}${isRequired ? "" : usual ? `, ${usual} if empty` : ", may be left out"}` };
}

function kindOf(schema: Schema, defs: Schema): Partial<InputField> {
  const choices = "const" in schema ? [schema["const"]] : schema["enum"];
  if (Array.isArray(choices) && choices.length) return { kind: "choice", choices };
  if ("contentEncoding" in schema) return { kind: "file", media: mediaOf(schema) };
  const items = resolved(schema["items"], defs);
  const isList = schema["type"] === "array";
  if (isList && "contentEncoding" in items) return { kind: "file", media: mediaOf(items), isMany: true };
  const isMany = isList && ("items" in schema || "prefixItems" in schema) && !("x-dtype" in schema);
  return { kind: own(KINDS, String(schema["type"])) ?? "any", isMany };
}

const mediaOf = (schema: Schema): string => String(schema["contentMediaType"] ?? "");

/** The body of a call: a form if there is a file, else JSON, in which numbers are as typed. */
export function bodyOf(fields: InputField[], { texts, files }: Given): Made {
  const faults = new Map<string, Fault>();
  const written: [InputField, string][] = [];
  for (const field of fields) {
    const text = own(texts, field.name) ?? "";
    if (field.kind === "file") {
      if (field.isRequired && !own(files, field.name)?.length) faults.set(field.name, { expected: "a file", got: "none" });
    } else if (text !== "" || (field.isRequired && field.kind === "text")) {
      const json = jsonOf(field, text);
      if (json === null) faults.set(field.name, { expected: nounOf(field), got: cut(text) });
      else written.push([field, json]);
    } else if (field.isRequired) faults.set(field.name, { expected: nounOf(field), got: "nothing" });
  }
  if (faults.size) return { faults };
  const chosen = fields.filter(({ name, kind }) => kind === "file" && own(files, name)?.length);
  if (!chosen.length) {
    return { body: `{"inputs": {${written.map(([{ name }, json]) => `${JSON.stringify(name)}: ${json}`).join(", ")}}}` };
  }
  const form = new FormData();
  for (const { name } of chosen) for (const file of own(files, name) ?? []) form.append(name, file);
  for (const [field, json] of written) for (const one of partsOf(field, json, own(texts, field.name) ?? "")) form.append(field.name, one);
  return { body: form };
}

function nounOf(field: InputField): string {
  if (field.kind === "choice") return `one of ${field.choices.map((one) => JSON.stringify(one)).join(", ")}`;
  return (field.isMany ? LISTS[field.kind] : undefined) ?? NOUN[field.kind];
}

/** The JSON text of a typed value; null for one that does not fit. */
function jsonOf(field: InputField, text: string): string | null {
  const bare = text.trim();
  const value = parsed(bare);
  if (field.isNullable && field.kind !== "text" && bare === "null") return bare;
  switch (field.kind) {
    case "text":
      return JSON.stringify(text);
    case "choice":
      return field.choices.map((one) => JSON.stringify(one)).find((one) => one === text) ?? null;
    case "integer":
      return /^-?(0|[1-9]\d*)$/.test(bare) ? bare : null;
    case "number":
      return typeof value === "number" ? bare : null;
    case "boolean":
      return typeof value === "boolean" ? bare : null;
    case "any":
      return value === undefined ? JSON.stringify(text) : bare;
    default:
      return value === undefined || (field.isMany && !Array.isArray(value)) ? null : bare;
  }
}

/** The parts of a form that stand for a value: texts as they are, of a list each item. */
function partsOf(field: InputField, json: string, text: string): string[] {
  if (field.kind === "text" || field.kind === "any") return [text];
  const value = parsed(json);
  const items: unknown[] = field.isMany && Array.isArray(value) ? value : [value];
  if (items.length === 1 && !field.isMany) return [typeof value === "string" ? value : json];
  return items.map((one) => (typeof one === "string" ? one : JSON.stringify(one)));
}

/** What is typed for given inputs, as those of a sample. Files are not. */
export function textsOfInputs(fields: InputField[], inputs: Record<string, unknown>): Record<string, string> {
  const texts: Record<string, string> = {};
  for (const { name, kind } of fields) {
    const value = own(inputs, name);
    if (value === undefined || kind === "file") continue;
    texts[name] = (kind === "text" || kind === "any") && typeof value === "string" ? value : JSON.stringify(value);
  }
  return texts;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function resolved(given: unknown, defs: Schema): Schema {
  let schema = isObject(given) ? given : {};
  for (let step = 0; step < DEPTH_MAX && "$ref" in schema; step += 1) {
    const { $ref, ...own } = schema;
    schema = { ...part(defs, String($ref).replace(REF, "")), ...own };
  }
  return schema;
}

function listOf(of: Schema, name: string): Schema[] {
  const found = of[name];
  return Array.isArray(found) ? found.filter(isObject) : [];
}

function part(of: Schema, name: string): Schema {
  const found = own(of, name);
  return isObject(found) ? found : {};
}

const isObject = (value: unknown): value is Schema => typeof value === "object" && value !== null && !Array.isArray(value);

const cut = (text: string): string => (text.length > HINT_MAX ? `${text.slice(0, HINT_MAX)}…` : text);
