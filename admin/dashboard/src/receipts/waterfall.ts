/** Phases of cold starts as bars on a common scale. */

import { LOCAL, PHASES, type ColdStart, type Phase, type Phases } from "../api/types.ts";
import { millis } from "../design/format.ts";

export interface Segment {
  phase: Phase;
  ms: number;
  /** Start and length as fractions (0..1) of the scale. */
  from: number;
  share: number;
}

/** The phases in order, one after the other; a phase of 0 ms has no bar. */
export function segments(phases: Phases, scale_ms: number): Segment[] {
  let from = 0;
  const found: Segment[] = [];
  for (const phase of PHASES) {
    const ms = phases[phase] ?? 0;
    if (!(ms > 0) || !(scale_ms > 0)) continue;
    const share = Math.min(ms / scale_ms, 1 - from);
    found.push({ phase, ms, from, share });
    from += share;
  }
  return found;
}

/** Sum of the phases in ms; `total_ms` may exclude the first run. */
export function length_ms(start: Pick<ColdStart, "phases" | "total_ms">): number {
  const sum = PHASES.reduce((total, phase) => total + (start.phases[phase] ?? 0), 0);
  return Math.max(sum, start.total_ms);
}

/** Time of a cold start outside of all phases: the call's transport, and waits between phases. */
export function rest(
  start: Pick<ColdStart, "phases" | "total_ms">,
  scale_ms: number,
): { from: number; share: number } | null {
  const used = segments(start.phases, scale_ms).at(-1);
  const from = used ? used.from + used.share : 0;
  const share = Math.min(1, start.total_ms / scale_ms) - from;
  return share > 0.004 ? { from, share } : null;
}

/** The smallest round scale in ms that fits all starts. */
export function scaleOf(starts: readonly Pick<ColdStart, "phases" | "total_ms">[]): number {
  return roundUp(Math.max(1, ...starts.map(length_ms)));
}

/** The next of 1, 1.5, 2, 3, 5, 8 times a power of ten. */
export function roundUp(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 1.5, 2, 3, 5, 8, 10].find((step) => value <= step * power * (1 + 1e-9)) ?? 10;
  return step * power;
}

/** The phases as text, longest first, for screen readers. */
export function sentence(phases: Phases): string {
  const taken = PHASES.flatMap((phase) => {
    const ms = phases[phase] ?? 0;
    return ms > 0 ? [{ phase, ms }] : [];
  });
  taken.sort((a, b) => b.ms - a.ms);
  return taken.map(({ phase, ms }) => `${phase} ${millis(ms)}`).join(", ") || "no phase was measured";
}

/** Key of a cold start: a replica starts only once. */
export const keyOf = (start: Pick<ColdStart, "replica" | "at_s">): string =>
  `${start.replica} ${start.at_s.toFixed(1)}`;

/** Where a replica started: "cuda", "4 GPUs", or "4 GPUs of gpu2" on another host. */
export function placeOf({ device_kind, devices, host }: Pick<ColdStart, "device_kind" | "devices" | "host">): string {
  const place = devices.length > 1 ? `${devices.length} GPUs` : device_kind;
  return host && host !== LOCAL ? `${place} of ${host}` : place;
}
