/** Geometry of a time axis: positions of buckets, states and ticks. */

import type { TimelineState, BucketUse } from "../api/types.ts";

export const PARTS = ["busy", "idle", "waking"] as const;
export type Part = (typeof PARTS)[number];
export type Paths = Record<Part, string>;

/** Minimum height, so that a cold start of 0.1 s is visible in a bucket of ten minutes. */
const LEAST_PX = 1;

/** The time range `from_s`..`to_s` on a width of `width` px. */
export interface Scale {
  from_s: number;
  to_s: number;
  width: number;
}

export function x(scale: Scale, at_s: number): number {
  const share = (at_s - scale.from_s) / (scale.to_s - scale.from_s || 1);
  return Math.min(1, Math.max(0, share)) * scale.width;
}

/** One bucket per time, in order: the sum over all devices. */
export function summed(use: readonly BucketUse[]): BucketUse[] {
  const byTime = new Map<number, BucketUse>();
  for (const one of use) {
    const known = byTime.get(one.at_s) ?? { at_s: one.at_s, waking_s: 0, idle_s: 0, busy_s: 0 };
    byTime.set(one.at_s, {
      at_s: one.at_s,
      waking_s: known.waking_s + one.waking_s,
      idle_s: known.idle_s + one.idle_s,
      busy_s: known.busy_s + one.busy_s,
    });
  }
  return [...byTime.values()].sort((a, b) => a.at_s - b.at_s);
}

/**
 * Three stacked shapes, busy at the bottom. A bucket is full when its seconds equal `bucket_s` times
 * `devices`, or the seconds of the fullest bucket. Two decimals keep the path of a day short.
 */
export function stack(use: readonly BucketUse[], bucket_s: number, scale: Scale, height: number, devices = 1): Paths {
  const peak = Math.max(bucket_s * devices, ...use.map((one) => one.busy_s + one.idle_s + one.waking_s));
  const paths: Paths = { busy: "", idle: "", waking: "" };
  for (const one of use) {
    const left = x(scale, one.at_s);
    const width = x(scale, one.at_s + bucket_s) - left;
    if (width <= 0) continue;
    let base = height;
    for (const part of PARTS) {
      const seconds = one[`${part}_s`];
      if (seconds <= 0) continue;
      const tall = Math.max(LEAST_PX, (seconds / peak) * height);
      paths[part] += `M${short(left)} ${short(base)}h${short(width)}v${short(-tall)}h${short(-width)}z`;
      base -= tall;
    }
  }
  return paths;
}

/** Bars of counts on one scale, as one SVG path. */
export function barPath(
  items: readonly { at_s: number; count: number }[],
  bucket_s: number,
  scale: Scale,
  height: number,
): string {
  const most = Math.max(1, ...items.map(({ count }) => count));
  return items
    .filter(({ count }) => count > 0)
    .map(({ at_s, count }) => {
      const left = x(scale, at_s);
      const width = Math.max(0.6, x(scale, at_s + bucket_s) - left - 0.4);
      const tall = Math.max(1, (count / most) * height);
      return `M${short(left)} ${height}h${short(width)}v${short(-tall)}h${short(-width)}z`;
    })
    .join("");
}

export interface Block {
  state: string;
  reason: string;
  left: number;
  width: number;
}

/** States as blocks in order; a block narrower than a third of a pixel joins its neighbour. */
export function blocks(states: readonly TimelineState[], scale: Scale): Block[] {
  const found: Block[] = [];
  for (const one of [...states].sort((a, b) => a.from_s - b.from_s)) {
    const left = x(scale, one.from_s);
    const width = x(scale, one.to_s) - left;
    const last = found.at(-1);
    if (last && last.state === one.state && left - (last.left + last.width) < 0.34)
      last.width = left + width - last.left;
    else if (width >= 0.34) found.push({ state: one.state, reason: one.reason, left, width });
  }
  return found;
}

const STEPS_S = [60, 300, 600, 900, 1800, 3600, 7200, 10_800, 14_400, 21_600, 43_200, 86_400];

/** Tick times at least `apart` px from each other, on whole hours and minutes of the time zone. */
export function ticks(scale: Scale, apart: number, zone_s: number): number[] {
  const span_s = scale.to_s - scale.from_s;
  const least_s = (span_s * apart) / Math.max(1, scale.width);
  const step_s = STEPS_S.find((step) => step >= least_s) ?? 86_400;
  const found: number[] = [];
  for (let at = Math.ceil((scale.from_s + zone_s) / step_s) * step_s - zone_s; at < scale.to_s; at += step_s) {
    found.push(at);
  }
  return found;
}

/** The bucket that covers `at_s`. */
export function bucketAt<T extends { at_s: number }>(
  items: readonly T[],
  at_s: number,
  bucket_s: number,
): T | undefined {
  return items.find((one) => one.at_s <= at_s && at_s < one.at_s + bucket_s);
}

function short(value: number): string {
  return String(Math.round(value * 100) / 100);
}
