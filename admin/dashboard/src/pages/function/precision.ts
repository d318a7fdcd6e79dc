/** The candidates of other precision, as lengths of bars. */

import type { CandidateReport, PrecisionReport, ColumnReport } from "../../api/types.ts";

export interface Measured {
  candidate: CandidateReport;
  isChosen: boolean;
  /** Time per row in the runs that the trial compared, and their rows; null if not measured. */
  best: { ms: number; rows: number } | null;
  /** The bar of that time, 0 to 1: the slowest candidate has 1. */
  time: number;
  /** How many times as fast as the original; null if unknown, and for the original. */
  gain: number | null;
  /** Largest disagreement with the original, in units of the tolerance's: 1 - cosine, the share of changed labels, or
   * the worst column's error; null if not judged. */
  off: number | null;
  /** The bar of the disagreement, 0 to 1. */
  reach: number;
}

/** The disagreement bars end at this multiple of the tolerance. */
export const SCALE = 2;

/** Lengths of all bars, in the order of the report. */
export function measured(report: PrecisionReport): Measured[] {
  const rows = comparedRows(report);
  const best = new Map(report.candidates.map((one) => [one.name, timeOf(one, rows)]));
  const slowest = Math.max(...[...best.values()].map((one) => one?.ms ?? 0), 1e-9);
  const before = best.get("original") ?? null;
  return report.candidates.map((candidate) => {
    const own = best.get(candidate.name) ?? null;
    const off = disagreement(candidate, report.tolerance);
    const isOriginal = candidate.name === "original";
    return {
      candidate,
      isChosen: candidate.name === report.chosen,
      best: own,
      time: own ? own.ms / slowest : 0,
      gain: own && before && own.ms > 0 && !isOriginal ? before.ms / own.ms : null,
      off,
      reach: off === null ? 0 : reachOf(off, report.tolerance),
    };
  });
}

/** Rows beyond which larger batches of the original saved less than a tenth per row; 1 if they are not joined. */
function comparedRows({ candidates }: PrecisionReport): number {
  const original = candidates.find(({ name }) => name === "original");
  const tried = Object.entries(original?.latency_ms ?? {}).map(([rows, ms]) => ({ rows: Number(rows), ms }));
  let best = { rows: 1, ms: Infinity };
  for (const { rows, ms } of tried.sort((a, b) => a.rows - b.rows)) {
    const isJoined = rows === 1 || original?.batchable === true;
    if (isJoined && ms / rows < best.ms * 0.9) best = { rows, ms: ms / rows };
  }
  return best.rows;
}

function timeOf({ latency_ms, batchable }: CandidateReport, rows: number): { ms: number; rows: number } | null {
  const together = batchable && latency_ms?.[rows] !== undefined ? rows : 1;
  const ms = latency_ms?.[together];
  return ms === undefined ? null : { ms: ms / together, rows: together };
}

function disagreement({ cosine, same_label, column }: CandidateReport, tolerance: number): number | null {
  const found = [cosine, same_label].filter((value): value is number => value !== undefined).map((value) => 1 - value);
  // Without a tolerance, any error is above it.
  if (column) found.push(column.error_max > 0 ? (column.error / column.error_max) * tolerance : column.error);
  return found.length ? Math.max(0, ...found) : null;
}

function reachOf(off: number, tolerance: number): number {
  if (tolerance <= 0) return off > 0 ? 1 : 0;
  return Math.min(1, off / (SCALE * tolerance));
}

/** A disagreement in few digits: "0", "0.0004", "0.02", "<0.00001". */
export function small(value: number): string {
  if (value === 0) return "0";
  return value < 1e-5 ? "<0.00001" : String(Number(value.toPrecision(2)));
}

/** A share: "31 %", "0.024 %". */
export function percent(share: number): string {
  return `${Number((100 * share).toPrecision(2))} %`;
}

/** Where the worst column is: "y column 3". */
export function place({ output, part }: ColumnReport): string {
  return `${output} ${part}`.trimEnd();
}

/** All figures of the worst column. */
export function figures(column: ColumnReport): string {
  const { error, error_max, spread, bias, gain } = column;
  const of = gain === null ? "its magnitude, it is constant" : `its spread ${Number(spread.toPrecision(3))}`;
  const slope = gain === null ? "" : `, gain ${Number(gain.toPrecision(4))}`;
  const permitted = `at most ${percent(error_max)} is permitted`;
  return `${place(column)}: error ${percent(error)} of ${of}, ${permitted}; bias ${Number(bias.toPrecision(3))}${slope}`;
}

/** A short time: "0.21 µs", "0.004 ms", "0.42 ms", "12 ms". */
export function short(ms: number): string {
  if (ms > 0 && ms < 0.001) return `${Number((ms * 1000).toPrecision(2))} µs`;
  return `${ms < 10 ? Number(ms.toPrecision(2)) : Math.round(ms)} ms`;
}
