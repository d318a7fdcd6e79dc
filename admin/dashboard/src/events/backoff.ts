const FIRST_MS = 500;
const MAX_MS = 15_000;

/**
 * How long to wait before try number `attempt` (from 1), in ms: twice as long each time, half of it
 * by chance, so that the pages of a restarted server do not all come back in one moment.
 */
export function waitBefore(attempt: number, random: number): number {
  const full = Math.min(MAX_MS, FIRST_MS * 2 ** Math.min(attempt - 1, 10));
  return Math.round(full / 2 + (full / 2) * random);
}
