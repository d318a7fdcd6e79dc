/** Parser of `Server-Timing` (W3C Server Timing) into the phases of one call. */

import { PHASES, type Phase } from "../api/types.ts";

export interface Metric {
  name: string;
  /** Milliseconds; null if the metric has no duration. */
  ms: number | null;
  text: string;
}

export interface Part {
  name: string;
  ms: number;
  /** A phase of a cold start that this call waited for. */
  isPhase: boolean;
}

export interface Receipt {
  parts: Part[];
  totalMs: number;
  replica: string;
  /** The started replica's revision and device, as "digits@3 on cpu:0"; "" for a warm call. */
  cold: string;
  rows: string;
}

const METRICS_MAX = 64;

/** The header's metrics in order; unreadable ones are skipped. */
export function parseServerTiming(header: string): Metric[] {
  const found: Metric[] = [];
  for (const text of splitQuoted(header, ",").slice(0, METRICS_MAX)) {
    const [name = "", ...parameters] = splitQuoted(text, ";").map((part) => part.trim());
    if (!/^[!#$%&'*+.^_`|~\w-]+$/.test(name)) continue;
    const metric: Metric = { name, ms: null, text: "" };
    for (const parameter of parameters) {
      const at = parameter.indexOf("=");
      const key = parameter.slice(0, at).trim().toLowerCase();
      const value = unquoted(parameter.slice(at + 1).trim());
      if (key === "dur" && value !== "" && Number.isFinite(Number(value))) metric.ms = Number(value);
      if (key === "desc") metric.text = value;
    }
    found.push(metric);
  }
  return found;
}

/**
 * Breakdown of a call's time. A held call's `queue` includes its cold start: the phases replace
 * that part, and the remainder stays as `queue`.
 */
export function receiptOf(header: string): Receipt | null {
  const metrics = parseServerTiming(header);
  if (!metrics.length) return null;
  const text = (name: string) => metrics.find((metric) => metric.name === name)?.text ?? "";
  const cold = text("cold");
  const timed = metrics.filter((metric) => metric.ms !== null);
  const phases = cold ? timed.filter((metric) => PHASES.includes(metric.name as Phase)) : [];
  const started = phases.filter((metric) => metric.name !== "first_run");
  const startMs = started.reduce((sum, metric) => sum + (metric.ms as number), 0);
  const parts = timed.map((metric) => ({
    name: metric.name,
    ms: metric.name === "queue" ? Math.max(0, (metric.ms as number) - startMs) : (metric.ms as number),
    isPhase: phases.includes(metric),
  }));
  const totalMs = parts.reduce((sum, part) => sum + part.ms, 0);
  return { parts, totalMs, replica: text("replica"), cold, rows: text("batch") };
}

function splitQuoted(text: string, separator: string): string[] {
  const parts: string[] = [];
  let part = "";
  let quoted = false;
  for (let at = 0; at < text.length; at += 1) {
    const char = text[at] as string;
    if (quoted && char === "\\") {
      part += char + (text[at + 1] ?? "");
      at += 1;
      continue;
    }
    if (char === '"') quoted = !quoted;
    if (char === separator && !quoted) {
      parts.push(part);
      part = "";
    } else part += char;
  }
  if (part.trim()) parts.push(part);
  return parts;
}

function unquoted(text: string): string {
  if (!text.startsWith('"')) return text;
  return text.replace(/^"|"$/g, "").replace(/\\(.)/g, "$1");
}
