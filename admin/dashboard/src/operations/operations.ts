import type { OperationRow } from "../api/types.ts";
import { phaseText } from "../deploy/progress.ts";

/** Looks of the states, as classes of `tag`. */
export const LOOKS = { running: "waking", done: "good", failed: "bad", cancelled: "" } as const;

/** Max operations that the page lists; the server keeps more. */
export const LISTED_MAX = 100;

/** Operations newest first: `fetched` with what events told since, `live`. */
export function listed(fetched: readonly OperationRow[], live: ReadonlyMap<string, OperationRow>): OperationRow[] {
  const known = new Set(fetched.map(({ id }) => id));
  const added = [...live.values()].filter(({ id }) => !known.has(id));
  const all = [...added, ...fetched.map((one) => latest(one, live.get(one.id)))];
  return all.sort((a, b) => b.created_s - a.created_s).slice(0, LISTED_MAX);
}

/** The later of two states of one operation: an end is final, and events are newer than an answer. */
function latest(fetched: OperationRow, live: OperationRow | undefined): OperationRow {
  return live && fetched.state === "running" ? live : fetched;
}

/** The operation of function `name` to show beside it: a running one, or else `known`, in its latest state. */
export function operationOf(name: string, known: OperationRow | null, live: ReadonlyMap<string, OperationRow>): OperationRow | null {
  const running = [...live.values()].find((one) => one.name === name && one.state === "running");
  return running ?? (known && latest(known, live.get(known.id)));
}

/** What a running operation does, why one failed, or what it gave. */
export function detailOf({ state, phase, result, error }: OperationRow): string {
  const text = (fields: object | null | undefined, key: string): string => {
    const value = (fields as Record<string, unknown> | null | undefined)?.[key];
    return typeof value === "string" ? value : "";
  };
  if (state === "running") return phaseText(phase);
  if (state === "failed") return text(error, "detail") || text(error, "title") || "no reason given";
  if (state === "cancelled") return "nothing was changed";
  return [text(result, "revision"), text(result, "switch")].filter(Boolean).join(": ");
}

/** Seconds that the operation took, or has taken until `now_s`. */
export function tookOf({ created_s, ended_s }: OperationRow, now_s: number): number {
  return Math.max(0, (ended_s || now_s) - created_s);
}
