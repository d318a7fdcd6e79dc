import type { Scaling } from "../api/types.ts";

export type ScalingText = Record<keyof Scaling, string>;

const LIMITS: Record<keyof Scaling, { least: number; most: number; isWhole: boolean }> = {
  min: { least: 0, most: 1000, isWhole: true },
  max: { least: 1, most: 1000, isWhole: true },
  idle_s: { least: 0, most: 31_536_000, isWhole: false },
};

/** Errors by field, empty if all are valid. The server validates again. */
export function faultsOf(text: ScalingText): Partial<ScalingText> {
  const faults: Partial<ScalingText> = {};
  for (const key of ["min", "max", "idle_s"] as const) {
    const { least, most, isWhole } = LIMITS[key];
    const value = numberOf(text[key]);
    const fits = value !== null && value >= least && value <= most && (!isWhole || Number.isInteger(value));
    if (!fits) faults[key] = `expected a ${isWhole ? "whole number" : "number"} from ${least} to ${most}, got ${JSON.stringify(text[key].slice(0, 20))}`;
  }
  if (!faults.min && !faults.max && Number(text.min) > Number(text.max)) faults.min = `expected at most max, ${text.max}, got ${text.min}`;
  return faults;
}

/** The fields that differ from the current settings. */
export function changeOf(text: ScalingText, before: Scaling): Partial<Scaling> {
  const change: Partial<Scaling> = {};
  for (const key of ["min", "max", "idle_s"] as const) {
    const value = Number(text[key]);
    if (value !== before[key]) change[key] = value;
  }
  return change;
}

function numberOf(text: string): number | null {
  const trimmed = text.trim();
  return /^\d+(\.\d+)?$/.test(trimmed) ? Number(trimmed) : null;
}
