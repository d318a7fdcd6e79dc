/** What was fetched joined with what has come since, newest first. */

import type { Replica } from "../../api/types.ts";

interface Dated {
  at_s: number;
}

/** Items of both, each once by `key`, newest first, at most `max`. */
export function joined<T extends Dated>(
  fetched: readonly T[],
  live: readonly T[],
  key: (item: T) => string,
  max: number,
): T[] {
  const byKey = new Map<string, T>();
  for (const item of [...live, ...fetched]) if (!byKey.has(key(item))) byKey.set(key(item), item);
  return [...byKey.values()].sort((a, b) => b.at_s - a.at_s).slice(0, max);
}

/** A replica that is no more, as it was last. */
export interface Departed {
  replica: Replica;
  at_s: number;
}

export const DEPARTED_MAX = 5;

/** Those of `before` that are not in `now`, added to who had gone already, newest first. */
export function departed(
  gone: readonly Departed[],
  before: readonly Replica[],
  now: readonly Replica[],
  at_s: number,
): readonly Departed[] {
  const here = new Set(now.map((replica) => replica.id));
  const left = before.filter((replica) => !here.has(replica.id));
  if (!left.length) return gone;
  return [...left.map((replica) => ({ replica, at_s })), ...gone].slice(0, DEPARTED_MAX);
}
