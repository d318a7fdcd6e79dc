import { STATES, type FunctionRow, type FunctionState } from "../../api/types.ts";

export const SORTS = ["state", "name", "held", "in_flight", "rate", "p50_ms", "p95_ms", "sleeps_at_s", "error"] as const;
export type SortKey = (typeof SORTS)[number];

/** Filter and order of the functions, stored in the address. */
export interface View {
  text: string;
  /** Empty for all states. */
  states: readonly FunctionState[];
  sort: SortKey;
  isDescending: boolean;
}

export const FIRST_SORT: SortKey = "state";

/** States that need attention come first. */
const URGENCY: Record<FunctionState, number> = { failing: 0, waking: 1, draining: 2, warm: 3, parked: 4, cold: 5 };

/** The view encoded in an address; unknown values are ignored. */
export function viewOf(query: URLSearchParams): View {
  const asked = query.get("sort") ?? FIRST_SORT;
  const key = asked.replace(/^-/, "");
  const sort = SORTS.find((one) => one === key) ?? FIRST_SORT;
  const names = (query.get("state") ?? "").split(",");
  return {
    text: (query.get("q") ?? "").slice(0, 200),
    states: STATES.filter((state) => names.includes(state)),
    sort,
    isDescending: asked.startsWith("-") && sort === key,
  };
}

/** The address's query for a view, without default values. */
export function queryOf(view: View): Record<string, string> {
  const sort = `${view.isDescending ? "-" : ""}${view.sort}`;
  return { q: view.text, state: view.states.join(","), sort: sort === FIRST_SORT ? "" : sort };
}

/** The view after a click on a column head: a second click reverses; numbers start with the largest. */
export function sortedBy(view: View, key: SortKey): View {
  if (view.sort === key) return { ...view, isDescending: !view.isDescending };
  return { ...view, sort: key, isDescending: !(key === "name" || key === "state" || key === "sleeps_at_s") };
}

/** Whether every word of `text` is in the name, the revision, a label or a device of a function. */
export function isFound(line: FunctionRow, words: readonly string[]): boolean {
  if (!words.length) return true;
  const labels = Object.entries(line.labels).map(([key, value]) => `${key}=${value}`);
  const where = [line.revision, ...labels, ...line.devices].join(" ").toLowerCase();
  return words.every((word) => where.includes(word));
}

/** Names of the functions to show, in order. `errorAt_s` returns the time of a function's last error. */
export function arrange(lines: Iterable<FunctionRow>, view: View, errorAt_s: (name: string) => number): string[] {
  const words = view.text.toLowerCase().split(/\s+/).filter(Boolean);
  const shown: { name: string; value: number | string | null }[] = [];
  for (const line of lines) {
    if (view.states.length && !view.states.includes(line.state)) continue;
    if (isFound(line, words)) shown.push({ name: line.name, value: valueOf(line, view.sort, errorAt_s) });
  }
  const way = view.isDescending ? -1 : 1;
  shown.sort((a, b) => compare(a.value, b.value, way) || byName(a.name, b.name));
  return shown.map((one) => one.name);
}

function valueOf(line: FunctionRow, key: SortKey, errorAt_s: (name: string) => number): number | string | null {
  switch (key) {
    case "name":
      return line.name;
    case "state":
      return URGENCY[line.state];
    case "error":
      return errorAt_s(line.name) || null;
    default:
      return line[key];
  }
}

/** Functions without a value come last in both directions. */
function compare(a: number | string | null, b: number | string | null, way: number): number {
  if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
  if (typeof a === "string" || typeof b === "string") return way * byName(String(a), String(b));
  return way * (a - b);
}

/** "a-2" before "a-10". A reused collator is a hundred times faster than localeCompare. */
const collator = new Intl.Collator("en", { numeric: true });
const byName = (a: string, b: string) => collator.compare(a, b);
