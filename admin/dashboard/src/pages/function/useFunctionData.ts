import { functionPath } from "../../api/client.ts";
import type { ColdStart, FunctionDetail, FunctionRow, ItemsFailureRow, Why } from "../../api/types.ts";
import { useFetched } from "../../api/fetched.ts";
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
export function useFunctionData(name: string, line: FunctionRow | undefined) {
  const path = functionPath(name);
  const activity = useActivity(name);
  const { ended, live } = useOperations(name);
  const lastStart = activity.coldStarts[0]?.at_s ?? 0;
  const lastError = activity.errors[0]?.at_s ?? 0;
  const settings = line ? `${line.revision} ${line.min} ${line.max} ${line.idle_s} ${line.created_s} ${line.build?.state ?? ""}` : "";
  const detail = useFetched<FunctionDetail>(path, `${settings} ${ended} ${lastStart}`);
  const isOpen = line?.engine === "server" && line.state !== "cold" && line.state !== "parked";
  const turn = useTurn(CONNECTIONS_S, isOpen);
  const why = useFetched<Why>(
    `${path}/why`,
    `${settings} ${live} ${line?.state ?? ""} ${line?.ready ?? 0} ${line?.wanted ?? 0} ${isOpen ? `${line.in_flight} ${turn}` : ""}`,
  );
  const errors = useFetched<ItemsFailureRow>(`${path}/errors`, lastError);
  const starts: ColdStart[] = joined<ColdStart>(why.data?.cold_starts ?? [], activity.coldStarts, keyOf, STARTS_MAX);
  return { detail, why: why.data, errors: errors.data?.items ?? activity.errors, starts };
}

/** Among the known operations of this function: the number of ended ones, and the states of all as one text. */
function useOperations(name: string): { ended: number; live: string } {
  const { store } = useSite();
  useOperationsVersion();
  const found = [...store.operations.values()].filter((one) => one.name === name);
  const live = found.map(({ id, state }) => `${id} ${state}`).join();
  return { ended: found.filter(({ state }) => state !== "running").length, live };
}
