import { count, span } from "../design/format.ts";
import type { Totals, BucketUse } from "../api/types.ts";

/** Device time as text: "busy 3 min 05 s, idle 1 h 02 min, waking 4 s". */
export function timesOf(use: Totals | BucketUse | undefined): string {
  if (!use) return "nothing ran";
  const parts = [
    ["busy", use.busy_s],
    ["idle", use.idle_s],
    ["waking", use.waking_s],
  ] as const;
  const told = parts.filter(([, seconds]) => seconds >= 0.05).map(([name, seconds]) => `${name} ${time(seconds)}`);
  return told.join(", ") || "nothing ran";
}

/** A duration with one unit; one decimal below ten. */
export function time(seconds: number): string {
  return seconds > 0 && seconds < 9.95 ? `${seconds.toFixed(1)} s` : span(seconds);
}

/** Seconds in their largest unit, for columns: "3.8 h", "42 min", "30 s". */
export function brief(seconds: number): string {
  if (seconds < 60) return time(seconds);
  if (seconds < 3600) return `${(seconds / 60).toFixed(seconds < 600 ? 1 : 0)} min`;
  return `${(seconds / 3600).toFixed(seconds < 360_000 ? 1 : 0)} h`;
}

/** A setting in seconds, not rounded: "0 s", "90 s", "5 min", "1 h". */
export function exactly(seconds: number): string {
  if (seconds >= 3600 && seconds % 3600 === 0) return `${seconds / 3600} h`;
  return seconds >= 60 && seconds % 60 === 0 ? `${seconds / 60} min` : `${seconds} s`;
}

/** Fraction of the time that a device was busy, 0..1. */
export function busyShare(use: Totals, span_s: number): number {
  return span_s > 0 ? Math.min(1, use.busy_s / span_s) : 0;
}

/** A difference with its sign: "+ 3.0 min", "− 12", "±0". */
export function signed(value: number, unit: "time" | "count"): string {
  if (Math.abs(value) < (unit === "time" ? 0.05 : 0.5)) return "±0";
  const size = Math.abs(value);
  return `${value < 0 ? "−" : "+"} ${unit === "time" ? brief(size) : count(Math.round(size))}`;
}
