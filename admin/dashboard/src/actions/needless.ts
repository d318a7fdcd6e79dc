import type { FunctionRow } from "../api/types.ts";
import type { ActionKind } from "./ActionsHost.tsx";

/** Why actions on a function would change nothing now, or are refused; those without an entry may be tried. */
export function needlessOf({ state, park }: Pick<FunctionRow, "state" | "park">): Partial<Record<ActionKind, string>> {
  const isParked = state === "parked" || (park?.parked.length ?? 0) > 0;
  const asleep = state === "cold" ? "it is cold" : "";
  return {
    ...(state === "warm" ? { warm: "it is warm" } : {}),
    ...(asleep || state === "parked" ? { sleep: asleep || "it is parked" } : {}),
    ...(park?.off || asleep || state === "parked" ? { park: parkReason(park?.off ?? "", asleep) } : {}),
    ...(isParked ? {} : { unpark: "it is not parked" }),
  };
}

function parkReason(off: string, asleep: string): string {
  return off || asleep || "it is parked";
}
