/** Formats numbers and times for people: short, with a constant width where they change, no false precision. */

const NONE = "–";

/** "0", "0.4", "12.3", "1 240", "12k". */
export function count(value: number): string {
  if (value >= 100_000) return `${Math.round(value / 1000)}k`;
  if (value >= 1000) return Math.round(value).toLocaleString("en-US").replace(",", "\u202f");
  return Number.isInteger(value) ? String(value) : value.toFixed(value < 100 ? 1 : 0);
}

/** A rate per second; 0 becomes a dash, since most functions have no calls. */
export function rate(value: number): string {
  if (value <= 0) return NONE;
  return value < 0.1 ? "<0.1" : count(value);
}

/** Milliseconds: "0.8 ms", "42 ms", "1.24 s". */
export function millis(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  if (value < 10) return `${value.toFixed(1)} ms`;
  if (value < 1000) return `${Math.round(value)} ms`;
  return value < 60_000 ? `${(value / 1000).toFixed(value < 10_000 ? 2 : 1)} s` : span(value / 1000);
}

/** A duration in its two largest units: "45 s", "4 min 05 s", "2 h 10 min", "3 d 4 h". */
export function span(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  const two = (n: number) => String(n).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

/** A countdown: "0:45", "12:05", "1:02:00". */
export function countdown(seconds: number): string {
  const whole = Math.max(0, Math.ceil(seconds));
  const two = (n: number) => String(n).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor((whole % 3600) / 60);
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** Time since an event, in one unit: "now", "12 s ago", "3 min ago". */
export function ago(seconds: number): string {
  if (seconds < 2) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} d ago`;
}

/** Memory in MiB or GiB: "512 MiB", "78.2 GiB". */
export function mebibytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  if (value > 0 && value < 1) return `${Math.ceil(value * 1024)} KiB`;
  if (value < 1024) return `${Math.round(value)} MiB`;
  return `${(value / 1024).toFixed(value < 102_400 ? 1 : 0)} GiB`;
}

/** A fraction 0..1 as whole per cent. */
export function percent(share: number | null | undefined): string {
  return share === null || share === undefined ? NONE : `${Math.round(share * 100)}%`;
}

/** A time of day in the browser's time zone: "14:03:09". */
export function clockTime(at_s: number): string {
  return new Date(at_s * 1000).toLocaleTimeString("en-GB");
}

/** "1 replica", "2 replicas". */
export function plural(n: number, noun: string): string {
  return `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
}

/** The size of a file: "312 B", "4.1 KiB", "12.0 MiB". */
export function bytes(size: number): string {
  if (size < 1024) return `${size} B`;
  const kib = size / 1024;
  return kib < 1024 ? `${kib.toFixed(kib < 100 ? 1 : 0)} KiB` : `${(kib / 1024).toFixed(1)} MiB`;
}
