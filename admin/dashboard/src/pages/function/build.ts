import type { BuildDetail, BuildRow, OutputParity, ShapeRange } from "../../api/types.ts";
import { millis, span } from "../../design/format.ts";

const ATTEMPTS = 3;
const TITLES: Record<BuildRow["state"], string> = {
  unavailable: "no compiler",
  waiting: "waiting",
  building: "building",
  given_up: `given up ${ATTEMPTS} times`,
  failed: "failed",
  done: "done",
};
/** Classes of the states' tags. */
export const TONES: Record<BuildRow["state"], string> = {
  unavailable: "tag",
  waiting: "tag",
  building: "tag busy",
  given_up: "tag bad",
  failed: "tag bad",
  done: "tag good",
};

/** The state in words, with the time that has passed and the estimate while it runs. `now_s` in Unix seconds. */
export function buildTitle(line: BuildRow, now_s: number): string {
  const title = TITLES[line.state];
  if (line.state !== "building" || line.began_s === null) return title;
  const elapsed_s = Math.max(0, now_s - line.began_s);
  if (line.estimate_s === null) return `${title}: ${span(elapsed_s)}`;
  const estimate = `${elapsed_s > line.estimate_s ? ", estimated" : " of about"} ${span(line.estimate_s)}`;
  return `${title}: ${span(elapsed_s)}${estimate}`;
}

/** What the state means where no reason is given, "" if it is clear. */
export function buildMeaning(line: BuildRow): string {
  if (line.reason) return line.reason;
  if (line.state === "waiting") return "A build begins when a device is free. Calls are answered meanwhile.";
  return line.state === "building" ? "Calls are answered meanwhile, and end the build if they need its device." : "";
}

/** What the function's owner can do, "" for nothing. */
export function buildAdvice(line: BuildRow, name: string): string {
  return line.state === "given_up" || line.state === "failed" ? `fnctl prepare ${name} --now` : "";
}

/** The output that differs most. */
export function worst(parity: OutputParity[]): OutputParity | undefined {
  return [...parity].sort((a, b) => b.relative_difference - a.relative_difference)[0];
}

/** The type of device of a build: its host and model. */
export function deviceName(build: BuildDetail): string {
  return `${build.host} ${build.device_model || build.device_type || ""}`.trim();
}

/** Facts about a compiled model, as pairs of a name and a value. */
export function buildFacts(build: BuildDetail): [string, string][] {
  const most = worst(build.parity);
  const facts: [string, string | null][] = [
    ["by", build.compiler && `${build.compiler} for ${build.device_type}`],
    ["graph", build.form && (build.form === "context" ? "wholly compiled" : "compiled in parts")],
    ["took", build.elapsed_s === null ? null : span(build.elapsed_s)],
    [
      "differs by",
      most ? `${short(most.relative_difference)} (${most.output}${samplesText(build.samples)})` : null,
    ],
    ["shapes", build.ranges.map(rangeText).join(", ")],
    ["other shapes", build.outside && (build.outside === "ordinary" ? "run uncompiled" : "are refused")],
  ];
  return facts.filter((one): one is [string, string] => Boolean(one[1]));
}

/** A build that failed states no number. */
function samplesText(samples: number): string {
  return samples ? `, ${samples} samples` : "";
}

function rangeText({ input, smallest, largest }: ShapeRange): string {
  return `${input} ${smallest.join("x")} to ${largest.join("x")}`;
}

function short(value: number): string {
  return value === 0 ? "0" : value.toPrecision(2);
}

/** Milliseconds per run before and after, by rows, in the order of the rows. */
export function buildTimes(build: BuildDetail): { rows: number; ordinary: string; compiled: string }[] {
  return Object.keys(build.ordinary_ms)
    .filter((rows) => rows in build.compiled_ms)
    .map(Number)
    .sort((a, b) => a - b)
    .map((rows) => ({
      rows,
      ordinary: shown(build.ordinary_ms[rows] ?? 0),
      compiled: shown(build.compiled_ms[rows] ?? 0),
    }));
}

/** Small models run in microseconds. */
function shown(ms: number): string {
  return ms < 1 ? `${ms.toFixed(3)} ms` : millis(ms);
}
