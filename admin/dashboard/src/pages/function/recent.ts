/** What was fetched joined with what has come since, newest first. */

interface Dated {
  at_s: number;
}

/**
 * Why a replica went: its own last words, or where it was gone before anybody looked (a killed one
 * is within a moment) what was noted of its end; "" where nothing is known.
 */
export function lastWords({ id, why }: { id: string; why: string }, decisions: readonly { text: string }[]): string {
  const beginning = `${id} ended: `;
  return why || (decisions.find(({ text }) => text.startsWith(beginning))?.text.slice(beginning.length) ?? "");
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
