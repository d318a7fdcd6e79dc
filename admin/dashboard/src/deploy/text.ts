/** Text of form fields as lists and pairs. Each function throws FieldError with what it expected. */
export class FieldError extends Error {}

/** The words of a command line, as a POSIX shell splits them without expanding anything. */
export function wordsOf(text: string): string[] {
  const words: string[] = [];
  let word: string | null = null;
  let quote = "";
  for (let at = 0; at < text.length; at++) {
    const char = text[at]!;
    if (quote === "'" ? char !== "'" : quote === '"' && char !== '"' && char !== "\\") word += char;
    else if (quote && char === quote) quote = "";
    else if (char === "\\") {
      const next = text[++at];
      if (next === undefined) throw new FieldError("expected a character after \\, got the end");
      if (next === "\n") continue;
      // Between double quotes a backslash is one, except before these (POSIX, 2.2.3).
      word = `${word ?? ""}${quote && !'$`"\\'.includes(next) ? "\\" : ""}${next}`;
    } else if (char === "'" || char === '"') {
      quote = char;
      word ??= "";
    } else if (/\s/.test(char)) {
      if (word !== null) words.push(word);
      word = null;
    } else word = (word ?? "") + char;
  }
  if (quote) throw new FieldError(`expected a closing ${quote}, got the end`);
  if (word !== null) words.push(word);
  return words;
}

/** `NAME=VALUE` per line, in the given form; empty lines are skipped. Each name only once. */
export function pairsOf(text: string, form: string): Record<string, string> {
  const pairs = new Map<string, string>();
  text.split(/\r?\n/).forEach((line, at) => {
    if (!line.trim()) return;
    const equals = line.indexOf("=");
    const name = line.slice(0, Math.max(0, equals)).trim();
    if (!name) throw new FieldError(`line ${at + 1}: expected ${form}, got ${JSON.stringify(line.slice(0, 40))}`);
    if (pairs.has(name)) throw new FieldError(`line ${at + 1}: expected another name, got ${name} a second time`);
    pairs.set(name, line.slice(equals + 1));
  });
  return Object.fromEntries(pairs);
}

/** A number of the given range, or null for an empty field. */
export function numberOf(text: string, least: number, most: number, isWhole: boolean): number | null {
  const trimmed = text.trim();
  if (!trimmed) return null;
  const value = /^\d+(\.\d+)?$/.test(trimmed) ? Number(trimmed) : NaN;
  if (value >= least && value <= most && (!isWhole || Number.isInteger(value))) return value;
  const got = JSON.stringify(trimmed.slice(0, 20));
  throw new FieldError(`expected a ${isWhole ? "whole number" : "number"} from ${least} to ${most}, got ${got}`);
}

/** A string of TOML 1.0: the escapes of JSON, and one of DEL, which JSON does not escape. */
export function tomlString(text: string): string {
  return JSON.stringify(text).replaceAll("\x7f", "\\u007F");
}

const NAME = /^[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?$/;
export const NAME_RULE = "a name of at most 63 characters: a-z, 0-9 and '-', beginning with a letter and not ending with '-'";

export const isName = (text: string): boolean => NAME.test(text);

/** A function's name from other text: "My Model_v2" gives "my-model-v2"; "" if the rest is no name. */
export function nameFrom(text: string): string {
  const plain = text.normalize("NFKD").replace(/[^\x00-\x7f]/g, "").toLowerCase();
  const name = plain
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 63)
    .replace(/-+$/, "");
  return isName(name) ? name : "";
}

/** The name for a model's file. */
export const nameFromFile = (file: string): string => nameFrom(file.replace(/\.[^.]*$/, ""));

/** The name for an image: the last part of its repository, without tag and digest. */
export function nameFromImage(reference: string): string {
  const last = reference.split("@")[0]!.split("/").at(-1)!;
  return nameFrom(last.split(":")[0]!);
}
