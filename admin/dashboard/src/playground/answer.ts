/** An answer's body in a form that the page can show. */

import { pretty } from "./form.ts";

export interface Score {
  label: string;
  score: number;
}

export interface Shown {
  /** The best labels of each row, if the function has labels. */
  top: Score[][];
  text: string;
  /** Bytes that are not shown; 0 if all are. */
  cut: number;
}

/** Maximum bytes of a JSON answer that is parsed for labels; of a larger one only the start is shown. */
export const READ_MAX = 4 * 2 ** 20;
export const SHOWN_MAX = 64 * 1024;
const ROWS_MAX = 20;
const LABELS_MAX = 20;

/** Convert an answer's body for display. Never throws. */
export function shownOf(type: string, body: Uint8Array): Shown {
  const media = (type.split(";")[0] ?? "").trim().toLowerCase();
  const isJson = media === "application/json" || media.endsWith("+json");
  if (!isJson && !media.startsWith("text/"))
    return { top: [], text: hex(body), cut: Math.max(0, body.length - HEX_MAX) };
  if (isJson && body.length <= READ_MAX) {
    try {
      const data: unknown = JSON.parse(new TextDecoder().decode(body));
      return { top: topOf(data), ...cutTo(pretty(data)) };
    } catch {
      // Not JSON: shown unchanged.
    }
  }
  const shown = new TextDecoder().decode(body.subarray(0, SHOWN_MAX));
  return { top: [], text: shown, cut: Math.max(0, body.length - SHOWN_MAX) };
}

/** `top` of a short answer: `[[{label, score}]]`, best first. */
export function topOf(data: unknown): Score[][] {
  const top = typeof data === "object" && data !== null ? (data as { top?: unknown }).top : undefined;
  if (!Array.isArray(top)) return [];
  return top.slice(0, ROWS_MAX).map((row: unknown) =>
    (Array.isArray(row) ? row : []).slice(0, LABELS_MAX).flatMap((item: unknown) => {
      const { label, score } = (item ?? {}) as Partial<Score>;
      return typeof label === "string" && typeof score === "number" ? [{ label, score }] : [];
    }),
  );
}

/** Bar length (0..1) of each score: probabilities unchanged, other scores relative to the best. */
export function bars(row: Score[]): number[] {
  const isShare = row.every(({ score }) => score >= 0 && score <= 1);
  if (isShare) return row.map(({ score }) => score);
  const low = Math.min(0, ...row.map(({ score }) => score));
  const span = Math.max(...row.map(({ score }) => score)) - low || 1;
  return row.map(({ score }) => (score - low) / span);
}

const HEX_MAX = 256;

function hex(body: Uint8Array): string {
  const lines: string[] = [];
  for (let at = 0; at < Math.min(body.length, HEX_MAX); at += 16) {
    const bytes = [...body.subarray(at, Math.min(at + 16, HEX_MAX))];
    const codes = bytes.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = bytes.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(4, "0")}  ${codes.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

function cutTo(text: string): { text: string; cut: number } {
  return { text: text.slice(0, SHOWN_MAX), cut: Math.max(0, text.length - SHOWN_MAX) };
}
