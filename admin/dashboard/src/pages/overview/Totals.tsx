import { useMemo, type ReactNode } from "react";
import { StateText } from "../../design/State.tsx";
import { count, rate } from "../../design/format.ts";
import { useBeat, useNamesVersion, useOrderVersion, useSite } from "../../store/hooks.ts";
import { sumsOf, type Sums } from "./totals.ts";

/** Totals of functions, replicas and devices, updated each second. */
export function useSums(): Sums {
  const { store } = useSite();
  const names = useNamesVersion();
  const order = useOrderVersion();
  return useMemo(
    () => sumsOf(store.functions.values(), store.replicas.values(), store.devices.values()),
    // The maps are mutated in place: the versions show when.
    [store, names, order],
  );
}

export function Totals() {
  const beat = useBeat();
  const sums = useSums();
  const readyz = beat?.readyz;
  const look = !readyz ? "cold" : readyz.status === "ok" ? "ready" : "failing";
  return (
    <section className="totals panel" aria-label="Totals">
      <Total name="Held" value={count(beat?.held ?? 0)} more="waiting" isHot={(beat?.held ?? 0) > 0} />
      <Total name="In flight" value={count(beat?.in_flight ?? 0)} more="running" />
      <Total name="Rate" value={beat && beat.rate > 0 ? rate(beat.rate) : "0"} more="answers / s" />
      <Total
        name="Warm"
        value={count(sums.states.warm)}
        more={`of ${count(sums.functions)}${sums.states.parked ? `, ${count(sums.states.parked)} parked` : ""}`}
      />
      <Total name="Replicas" value={count(sums.ready)} more={sums.coming ? `ready, +${sums.coming}` : "ready"} />
      <Total name="Devices busy" value={count(sums.busy)} more={`of ${count(sums.devices)}`} />
      <div className="total server" role="group" aria-label="Server">
        <span className="total-name">Server</span>
        <StateText state={look} word={readyz?.status ?? "unknown"} />
        <span className="total-more clamp" title={readyz?.reasons.join("\n")}>
          {readyz ? readyz.reasons.join("; ") || "accepts calls" : "no report yet"}
        </span>
      </div>
    </section>
  );
}

function Total({ name, value, more, isHot = false }: { name: string; value: ReactNode; more: string; isHot?: boolean }) {
  return (
    <div className="total" role="group" aria-label={name}>
      <span className="total-name">{name}</span>
      <span className={`total-value${isHot ? " hot" : ""}`}>{value}</span>
      <span className="total-more">{more}</span>
    </div>
  );
}
