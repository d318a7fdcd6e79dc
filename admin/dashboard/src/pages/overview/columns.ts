import type { SortKey } from "./arrange.ts";

export interface Column {
  key: string;
  title: string;
  sort?: SortKey;
  isNumber?: boolean;
  /** The title is visible to screen readers only. */
  isHidden?: boolean;
  hint?: string;
}

const ALL: readonly Column[] = [
  { key: "name", title: "Function", sort: "name" },
  { key: "status", title: "State", sort: "state" },
  { key: "held", title: "Held", sort: "held", isNumber: true, hint: "requests waiting for a replica" },
  { key: "flight", title: "In flight", sort: "in_flight", isNumber: true, hint: "requests sent to replicas" },
  { key: "rate", title: "Rate /s", sort: "rate", isNumber: true, hint: "requests answered per second" },
  { key: "trend", title: "Last minute" },
  { key: "p50", title: "p50", sort: "p50_ms", isNumber: true, hint: "median latency of the last minute" },
  { key: "p95", title: "p95", sort: "p95_ms", isNumber: true, hint: "95th percentile of the latency of the last minute" },
  { key: "sleeps", title: "Sleeps in", sort: "sleeps_at_s", isNumber: true, hint: "time until the idle replica stops" },
  { key: "error", title: "Last error", sort: "error" },
  { key: "more", title: "Actions", isHidden: true },
];

const NARROW = ALL.filter((column) => column.key !== "error");

/** The columns by width step: 0 (cards) and 2 (widest table) have all, 1 has no error column. */
export function columnsOf(step: number): readonly Column[] {
  return step === 1 ? NARROW : ALL;
}

/** The sortable columns. */
export const SORTABLE = ALL.filter((column) => column.sort !== undefined);
