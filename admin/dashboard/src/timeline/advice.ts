/** What another idle time would have meant, row by row against the present one. */

import type { AdviceRow } from "./types.ts";

export interface Compared extends AdviceRow {
  /** Against the row as it is; negative is less. 0 for that row itself. */
  more_idle_device_s: number;
  more_waited_s: number;
  /** Idle device-seconds, 0..1 of the most. */
  share: number;
}

/** The rows by idle time with their differences; without a present row there are none. */
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
