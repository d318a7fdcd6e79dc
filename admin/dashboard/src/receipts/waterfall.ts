/** Phases of cold starts as bars on a common scale. */

import { PHASES, type ColdStart, type Phase, type Phases } from "../api/types.ts";
import { millis } from "../design/format.ts";

export interface Segment {
  phase: Phase;
  ms: number;
  /** Where it begins and how long it is, 0..1 of the scale. */
  from: number;
  share: number;
}

/** The phases one after the other, in their order; what took no time has no bar. */
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

/** What one phase after the other takes; `total_ms` may lack what its first run took. */
export function length_ms(start: Pick<ColdStart, "phases" | "total_ms">): number {
  const sum = PHASES.reduce((total, phase) => total + (start.phases[phase] ?? 0), 0);
  return Math.max(sum, start.total_ms);
}

/** What of a cold start is in no phase: its call's way there and back, and waits between them. */
export function rest(
  start: Pick<ColdStart, "phases" | "total_ms">,
  scale_ms: number,
): { from: number; share: number } | null {
  const used = segments(start.phases, scale_ms).at(-1);
  const from = used ? used.from + used.share : 0;
  const share = Math.min(1, start.total_ms / scale_ms) - from;
  return share > 0.004 ? { from, share } : null;
}

/** A round length that all of these fit into, ms. */
export function scaleOf(starts: readonly Pick<ColdStart, "phases" | "total_ms">[]): number {
  return roundUp(Math.max(1, ...starts.map(length_ms)));
}

/** The next of 1, 1.5, 2, 3, 5, 8 times a power of ten. */
export function roundUp(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 1.5, 2, 3, 5, 8, 10].find((step) => value <= step * power * (1 + 1e-9)) ?? 10;
  return step * power;
}

/** The phases in words, longest first, for whoever does not see bars. */
export function sentence(phases: Phases): string {
  const taken = PHASES.flatMap((phase) => {
    const ms = phases[phase] ?? 0;
    return ms > 0 ? [{ phase, ms }] : [];
  });
  taken.sort((a, b) => b.ms - a.ms);
  return taken.map(({ phase, ms }) => `${phase} ${millis(ms)}`).join(", ") || "no phase was measured";
}

/** What tells one cold start from another: a replica is never started twice. */
export const keyOf = (start: Pick<ColdStart, "replica" | "at_s">): string =>
  `${start.replica} ${start.at_s.toFixed(1)}`;
