/** An error answer of the server (application/problem+json), or a missing answer. */
export class Problem extends Error {
  override readonly name = "Problem";

  /** `status` is 0 if no answer arrived. `more` is the whole body. */
  constructor(
    readonly status: number,
    readonly code: string,
    readonly title: string,
    readonly detail: string,
    readonly more: Record<string, unknown> = {},
  ) {
    super(detail || title);
  }
}

/** The problem in an answer's body; any other body becomes a generic problem. */
export function problemOf(status: number, body: string): Problem {
  try {
    const data: unknown = JSON.parse(body);
    if (typeof data === "object" && data !== null) {
      const fields = data as Record<string, unknown>;
      const text = (key: string) => (typeof fields[key] === "string" ? fields[key] : "");
      return new Problem(status, text("code"), text("title"), text("detail"), fields);
    }
  } catch {
    // Not JSON: a proxy in between may have answered.
  }
  return new Problem(status, "", `HTTP ${status}`, body.slice(0, 300));
}

/** The message to show for a thrown value. */
export function wordsOf(error: unknown): string {
  if (error instanceof Problem) return error.message;
  return error instanceof Error ? error.message : String(error);
}
