/** Usage of a function's model at /v1: GET /usage?by=key&function=NAME. */

import type { Usage, UsageItem } from "../../api/types.ts";

/** Keys that the panel lists: those with the most tokens. */
export const KEYS_MAX = 8;
/** The key of calls that the server could not tell apart. */
const OTHERS = "_others";

/** Path of the usage by key since then, such as "7d". */
export function usagePath(name: string, since: string): string {
  return `/usage?${new URLSearchParams({ by: "key", since, function: name })}`;
}

/** A key in words. */
export function keyWords({ key, note, removed }: UsageItem): string {
  if (key === OTHERS) return "others";
  if (note) return note;
  if (!key) return "no key";
  return removed ? `key ${key}, removed` : `key ${key}`;
}

/** How many keys the panel does not list. */
export function moreKeys({ items, left_out }: Pick<Usage, "items" | "left_out">): number {
  return Math.max(0, items.length - KEYS_MAX) + left_out;
}
