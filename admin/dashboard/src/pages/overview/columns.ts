import type { SortKey } from "./arrange.ts";

export interface Column {
  key: string;
  title: string;
  sort?: SortKey;
  isNumber?: boolean;
  /** Its title is for screen readers only. */
  isHidden?: boolean;
  hint?: string;
}

const ALL: readonly Column[] = [
  { key: "name", title: "Function", sort: "name" },
  { key: "status", title: "State", sort: "state" },
  { key: "held", title: "Held", sort: "held", isNumber: true, hint: "requests that wait for a replica" },
  { key: "flight", title: "In flight", sort: "in_flight", isNumber: true, hint: "requests being run" },
  { key: "rate", title: "Rate /s", sort: "rate", isNumber: true, hint: "requests answered per second" },
  { key: "trend", title: "Last minute" },
  { key: "p50", title: "p50", sort: "p50_ms", isNumber: true, hint: "half of the last minute's requests took less" },
  { key: "p95", title: "p95", sort: "p95_ms", isNumber: true, hint: "95 of 100 requests of the last minute took less" },
  { key: "sleeps", title: "Sleeps in", sort: "sleeps_at_s", isNumber: true, hint: "until its idle replica goes" },
  { key: "error", title: "Last error", sort: "error" },
  { key: "more", title: "Actions", isHidden: true },
];

const NARROW = ALL.filter((column) => column.key !== "error");

/** The columns of a width: 0 cards and 2 the widest table have all, 1 the table without errors. */
export function columnsOf(step: number): readonly Column[] {
  return step === 1 ? NARROW : ALL;
}

/** Those that the list can be sorted by. */
export const SORTABLE = ALL.filter((column) => column.sort !== undefined);
