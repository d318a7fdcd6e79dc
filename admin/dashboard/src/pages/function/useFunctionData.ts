import { functionPath } from "../../api/client.ts";
import type { FunctionDetail, Why } from "../../api/detail.ts";
import { useFetched } from "../../api/fetched.ts";
import type { CallError, ColdStart, FunctionLine } from "../../api/types.ts";
import { keyOf } from "../../receipts/waterfall.ts";
import { useTurn } from "../../store/clock.ts";
import { useActivity, useOperationsVersion, useSite } from "../../store/hooks.ts";
import { joined } from "./recent.ts";

const STARTS_MAX = 20;
/** Seconds between two looks at the open exchanges of a server function: no event carries them. */
const CONNECTIONS_S = 3;

/**
 * Data of the page beside the event store: fetched once, and again after each event
 * that changes it.
 */
export function useFunctionData(name: string, line: FunctionLine | undefined) {
  const path = functionPath(name);
  const activity = useActivity(name);
  const ended = useEnded(name);
  const lastStart = activity.coldStarts[0]?.at_s ?? 0;
  const lastError = activity.errors[0]?.at_s ?? 0;
  const settings = line ? `${line.revision} ${line.min} ${line.max} ${line.idle_s} ${line.created_s} ${line.build?.state ?? ""}` : "";
  const detail = useFetched<FunctionDetail>(path, `${settings} ${ended} ${lastStart}`);
  const isOpen = line?.engine === "server" && line.state !== "cold";
  const turn = useTurn(CONNECTIONS_S, isOpen);
  const why = useFetched<Why>(
    `${path}/why`,
    `${settings} ${line?.state ?? ""} ${line?.ready ?? 0} ${line?.wanted ?? 0} ${isOpen ? `${line.in_flight} ${turn}` : ""}`,
  );
  const errors = useFetched<{ items: CallError[] }>(`${path}/errors`, lastError);
  const starts: ColdStart[] = joined<ColdStart>(why.data?.cold_starts ?? [], activity.coldStarts, keyOf, STARTS_MAX);
  return { detail, why: why.data, errors: errors.data?.items ?? activity.errors, starts };
}

/** Number of ended operations of this function among the known ones. */
function useEnded(name: string): number {
  const { store } = useSite();
  useOperationsVersion();
  return [...store.operations.values()].filter((one) => one["name"] === name && one.state !== "running").length;
}
