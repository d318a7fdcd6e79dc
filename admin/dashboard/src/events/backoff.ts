const FIRST_MS = 500;
const MAX_MS = 15_000;

/**
 * Delay in ms before attempt number `attempt` (from 1): doubled each time, half of it random,
 * so that the pages of a restarted server do not all reconnect at the same moment.
 */
export function waitBefore(attempt: number, random: number): number {
  const full = Math.min(MAX_MS, FIRST_MS * 2 ** Math.min(attempt - 1, 10));
  return Math.round(full / 2 + (full / 2) * random);
}
