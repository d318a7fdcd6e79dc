/** Simulated idle times, each compared with the current one. */

import type { AdviceRow } from "../api/types.ts";

export interface Compared extends AdviceRow {
  /** Difference from the current idle time; negative is less, 0 for the current row. */
  more_idle_device_s: number;
  more_waited_s: number;
  /** Idle device-seconds as a fraction (0..1) of the largest row. */
  share: number;
}

/** The rows by idle time with their differences; empty if the current idle time has no row. */
export function compared(rows: readonly AdviceRow[]): Compared[] {
  const now = rows.find((row) => row.is_current);
  const most = Math.max(1e-9, ...rows.map((row) => row.idle_device_s));
  return [...rows]
    .sort((a, b) => a.idle_s - b.idle_s)
    .map((row) => ({
      ...row,
      more_idle_device_s: now ? row.idle_device_s - now.idle_device_s : 0,
      more_waited_s: now ? row.waited_s - now.waited_s : 0,
      share: row.idle_device_s / most,
    }));
}
