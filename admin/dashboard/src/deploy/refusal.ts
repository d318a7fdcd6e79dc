import type { Problem } from "../api/problem.ts";

/** A reason and what to do about it in this form, where the problem's own words name an option of fnctl. */
const REMEDIES: readonly (readonly [test: (problem: Problem) => boolean, text: string])[] = [
  [({ code }) => code === "unreachable", "Files that were uploaded whole are kept: another try sends only the rest."],
  [({ code }) => code === "wrong_scope", "Sign in with a key of that scope: fnctl key add --scope admin."],
  [({ detail }) => detail.startsWith("server.port"), "Fill in the field Port."],
  [({ detail }) => /cannot pull|pull access|manifest unknown/.test(detail), "A private registry needs docker login on the server's machine, as the server's user."],
  [({ code, detail }) => code === "conflict" && detail.includes("derived"), "Choose another name, or let it make the next revision."],
  [({ code }) => code === "incompatible", "Allow changes that break current callers, or choose another name."],
  [({ code }) => code === "server_refused", "Its last lines are below. Often the port, the readiness path or the arguments are wrong."],
  [({ code }) => code === "bad_bundle", "A model with external data needs its data files beside it: drop them together."],
  [({ code }) => ["store_unavailable", "shutting_down", "supervisor_away"].includes(code), "Try again in a moment; files that were uploaded whole are kept."],
];

/** What to do about a refused deploy; "" where its reason says it. */
export function remedyOf(problem: Problem): string {
  return REMEDIES.find(([test]) => test(problem))?.[1] ?? "";
}

const SHOWN: readonly string[] = ["stage", "input", "key", "expected", "got", "breaks", "retry_after_s", "request_id"];
const LINES_MAX = 40;

/** Further fields of the problem document as pairs of name and text. */
export function factsOf({ more }: Problem): [string, string][] {
  return SHOWN.filter((key) => more[key] !== undefined && more[key] !== null && more[key] !== "").map((key) => [
    key.replaceAll("_", " "),
    wordsOf(more[key]),
  ]);
}

/** The last lines that the trial printed, of a problem document. */
export function logOf(problem: Record<string, unknown> | null | undefined): string[] {
  const lines = problem?.["log_tail"];
  return Array.isArray(lines) ? lines.map(String).slice(-LINES_MAX) : [];
}

function wordsOf(value: unknown): string {
  if (Array.isArray(value)) return value.map(wordsOf).join("; ");
  return typeof value === "string" ? value : JSON.stringify(value);
}
