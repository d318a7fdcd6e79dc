/** Types of the admin API and the words in them. The types are made from the OpenAPI document when the dashboard is
 * built (`python -m admin.ui.build`); their texts are in `admin/documents`. */

import type { FunctionRow, ReplicaRow, ServerEvents, TimelineTotals } from "../../generated/api.ts";

export type * from "../../generated/api.ts";

export const STATES = ["cold", "waking", "warm", "parked", "draining", "failing"] as const satisfies readonly FunctionRow["state"][];
export type FunctionState = FunctionRow["state"];

/** The phases of a cold start or a wake, in their order. */
export const PHASES = ["place", "evict", "start", "import", "bind", "fetch", "read", "load", "wake", "verify", "first_run"] as const;
export type Phase = (typeof PHASES)[number];
export type Phases = Partial<Record<Phase, number>>;

/** States of a replica that is about to serve. */
export const COMING: readonly ReplicaRow["state"][] = ["starting", "loading", "unparking", "verifying"];

/** The machine that the server runs on. */
export const LOCAL = "local";

/** The name of the definition of a host: a node of a cluster is called CLUSTER/NODE. */
export const definitionOf = (host: string): string => host.split("/", 1)[0] ?? host;

export type ServerEvent = { [T in keyof ServerEvents]: { type: T; data: ServerEvents[T] } }[keyof ServerEvents];
export type Scaling = Pick<FunctionRow, "min" | "max" | "idle_s">;
export type Totals = Pick<TimelineTotals, "waking_s" | "idle_s" | "busy_s">;
