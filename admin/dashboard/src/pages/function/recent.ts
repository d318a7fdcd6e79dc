/** Fetched items merged with items of the event stream, newest first. */

interface Dated {
  at_s: number;
}

/** Why a replica ended, from its function's decisions; "" if they do not say. */
export function endOf(id: string, decisions: readonly { text: string }[]): string {
  const start = `${id} ended: `;
  return decisions.find(({ text }) => text.startsWith(start))?.text.slice(start.length) ?? "";
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
