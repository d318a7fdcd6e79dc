/** What the page reads of an OpenAPI document, and what it shows of it. Pure. */

export interface Schema {
  $ref?: string;
  type?: string | string[];
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema | false;
  prefixItems?: Schema[];
  additionalProperties?: Schema | boolean;
  anyOf?: Schema[];
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
}

export interface Content {
  schema?: Schema;
  example?: unknown;
}

export interface Parameter {
  name: string;
  in: string;
  required?: boolean;
  description?: string;
  schema?: Schema;
}

export interface Answer {
  $ref?: string;
  description?: string;
  content?: Record<string, Content>;
  headers?: Record<string, unknown>;
}

export interface Operation {
  operationId: string;
  summary?: string;
  description?: string;
  tags?: string[];
  parameters?: Parameter[];
  requestBody?: { required?: boolean; content: Record<string, Content> };
  responses: Record<string, Answer>;
  security?: Record<string, string[]>[];
}

export interface OpenApi {
  info: { title: string; version: string; description?: string };
  tags?: { name: string }[];
  paths: Record<string, Record<string, Operation>>;
  components: { schemas: Record<string, Schema>; responses?: Record<string, Answer> };
}

export interface Route {
  method: string;
  path: string;
  operation: Operation;
}

export interface Group {
  name: string;
  routes: Route[];
}

const DEPTH_MAX = 6;
const WIDTH_MAX = 60;

/** The routes by tag, in the order of the document; only those in which `words` occur. */
export function groupsOf(document: OpenApi, words = ""): Group[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const groups = new Map<string, Route[]>((document.tags ?? []).map(({ name }) => [name, []]));
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags?.[0] ?? "";
      const text = `${method} ${path} ${operation.summary ?? ""} ${tag}`.toLowerCase();
      if (!wanted.every((word) => text.includes(word))) continue;
      const there = groups.get(tag) ?? [];
      there.push({ method: method.toUpperCase(), path, operation });
      groups.set(tag, there);
    }
  }
  return [...groups].map(([name, routes]) => ({ name, routes })).filter(({ routes }) => routes.length > 0);
}

/** Who may send a request: the scope of the key, or "" where nobody needs one. */
export function scopeOf(operation: Operation): { scope: string; isOpen: boolean } {
  const needs = operation.security ?? [];
  const scope = needs.flatMap((one) => Object.values(one).flat())[0] ?? "";
  return { scope, isOpen: needs.some((one) => Object.keys(one).length === 0) };
}

/** An answer without its reference. */
export function answerOf(document: OpenApi, answer: Answer): Answer {
  const name = answer.$ref?.split("/").at(-1);
  return name === undefined ? answer : (document.components.responses?.[name] ?? {});
}

/** A schema as the text of a type: nested to a limit, deeper ones by their names. */
export function shapeOf(schema: Schema, document: OpenApi, depth = 0, within: readonly string[] = []): string {
  const name = schema.$ref?.split("/").at(-1);
  if (name !== undefined) {
    const found = document.components.schemas[name];
    return !found || within.includes(name) || depth >= DEPTH_MAX ? name : shapeOf(found, document, depth, [...within, name]);
  }
  const inner = (one: Schema): string => shapeOf(one, document, depth + 1, within);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (schema.anyOf) return [...new Set(schema.anyOf.map((one) => shapeOf(one, document, depth, within)))].join(" | ");
  if (schema.prefixItems) return `[${schema.prefixItems.map(inner).join(", ")}]`;
  if (schema.items) return listOf(shapeOf(schema.items, document, depth, within));
  if (schema.properties) return objectOf(schema, inner, depth);
  if (typeof schema.additionalProperties === "object" && Object.keys(schema.additionalProperties).length) {
    return `{ [name]: ${inner(schema.additionalProperties)} }`;
  }
  const kinds = [schema.type ?? []].flat();
  return kinds.length ? kinds.map((kind) => (kind === "array" ? "any[]" : kind)).join(" | ") : "any";
}

function listOf(item: string): string {
  return item.includes(" | ") && !item.startsWith("{") ? `(${item})[]` : `${item}[]`;
}

function objectOf(schema: Schema, inner: (one: Schema) => string, depth: number): string {
  const needed = new Set(schema.required ?? []);
  const fields = Object.entries(schema.properties ?? {}).map(([name, one]) => `${name}${needed.has(name) ? "" : "?"}: ${inner(one)}`);
  const line = `{ ${fields.join(", ")} }`;
  if (!fields.length) return "{}";
  if (line.length <= WIDTH_MAX && !line.includes("\n")) return line;
  const indent = "  ".repeat(depth + 1);
  return `{\n${fields.map((field) => `${indent}${field}`).join(",\n")}\n${"  ".repeat(depth)}}`;
}

/** A JSON value as text, in one line if it is short. */
export function jsonOf(value: unknown): string {
  const line = JSON.stringify(value);
  return line.length <= WIDTH_MAX ? line : JSON.stringify(value, null, 2);
}

/** An example of a body: the document's own, or the least value that has every required member. */
export function exampleOf(content: Content, document: OpenApi): unknown {
  return content.example ?? (content.schema ? leastOf(content.schema, document, 0) : undefined);
}

function leastOf(schema: Schema, document: OpenApi, depth: number): unknown {
  const name = schema.$ref?.split("/").at(-1);
  if (name !== undefined) return depth > DEPTH_MAX ? {} : leastOf(document.components.schemas[name] ?? {}, document, depth + 1);
  if (schema.const !== undefined) return schema.const;
  if (schema.enum) return schema.enum[0];
  if (schema.anyOf) return leastOf(schema.anyOf[0] ?? {}, document, depth + 1);
  if (schema.properties) {
    const needed = new Set(schema.required ?? []);
    const fields = Object.entries(schema.properties).filter(([field]) => needed.has(field));
    return Object.fromEntries(fields.map(([field, one]) => [field, leastOf(one, document, depth + 1)]));
  }
  const kind = [schema.type ?? "object"].flat()[0];
  if (kind === "array") return [];
  if (kind === "string") return "";
  if (kind === "number" || kind === "integer") return 0;
  if (kind === "boolean") return false;
  return {};
}

/** A curl line for a request, with $KEY in place of a key and NAMES in place of the path's parameters. */
export function curlOf(route: Route, document: OpenApi, origin: string): string {
  const { method, operation } = route;
  const path = route.path.replace(/\{(\w+)\}/g, (_, name: string) => name.toUpperCase());
  const asked = (operation.parameters ?? []).filter((one) => one.required && one.in === "query");
  const query = asked.map((one) => `${encodeURIComponent(one.name)}=${one.name.toUpperCase()}`).join("&");
  const words = ["curl"];
  if (method === "HEAD") words.push("--head");
  else if (method !== "GET" && !(method === "POST" && operation.requestBody)) words.push("-X", method);
  if (scopeOf(operation).scope) words.push("-H", '"Authorization: Bearer $KEY"');
  words.push(...bodyOf(operation, document));
  return [...words, quoted(`${origin}${path}${query ? `?${query}` : ""}`)].join(" ");
}

function bodyOf(operation: Operation, document: OpenApi): string[] {
  const [media, content] = Object.entries(operation.requestBody?.content ?? {})[0] ?? [];
  if (media === undefined || content === undefined) return [];
  if (media !== "application/json") return media === "multipart/form-data" ? ["-F", "model=NAME", "-F", "file=@FILE"] : ["--data-binary", "@FILE"];
  return ["-H", "'Content-Type: application/json'", "-d", quoted(JSON.stringify(exampleOf(content, document)))];
}

/** `text` as one word of a POSIX shell. */
function quoted(text: string): string {
  return /^[\w./:=@%-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
