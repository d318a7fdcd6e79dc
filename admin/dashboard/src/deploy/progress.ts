/** One step of a deploy. `share` is 0..1 where known, `text` what the server says beside the step's name. */
export interface Step {
  name: string;
  text: string;
  share: number | null;
  began_ms: number;
  /** null while it runs. */
  ms: number | null;
}

/** Max steps shown; an operation has fewer. */
const STEPS_MAX = 30;

const TITLES: Record<string, string> = {
  read: "Read the files",
  send: "Upload",
  accept: "Check the request",
  upload: "Wait for a turn",
  image: "Look for the image",
  pull: "Pull the image",
  verify: "Try it",
  warm: "Start the new revision",
  drain: "Let open exchanges end",
  switch: "Switch the calls",
};

export const titleOf = ({ name }: Pick<Step, "name">): string => TITLES[name] ?? name;

/** The server's `phase` in words: "Try it: waiting for GET /health: 404 for 35 s". */
export function phaseText(phase: string): string {
  const [name = "", ...rest] = phase.split(" ");
  return [titleOf({ name }), rest.join(" ")].filter(Boolean).join(": ");
}

/** The steps with the server's `phase` as the current one: "pull 35 % of 1.2 GiB". Its first word names it. */
export function advanced(steps: readonly Step[], phase: string, now_ms: number): readonly Step[] {
  const [name = "", ...rest] = phase.split(" ");
  const text = rest.join(" ");
  const percent = /^(\d{1,3}) %/.exec(text)?.[1];
  return moved(steps, name, text, percent === undefined ? null : Math.min(1, Number(percent) / 100), now_ms);
}

/** The steps with `name` as the current one. */
export function moved(steps: readonly Step[], name: string, text: string, share: number | null, now_ms: number): readonly Step[] {
  const last = steps.at(-1);
  if (last?.name === name && last.ms === null) return [...steps.slice(0, -1), { ...last, text, share }];
  return [...ended(steps, now_ms), { name, text, share, began_ms: now_ms, ms: null }].slice(-STEPS_MAX);
}

/** The steps with the current one ended; nothing is left unfinished. */
export function ended(steps: readonly Step[], now_ms: number): readonly Step[] {
  return steps.map((step) => (step.ms === null ? { ...step, ms: now_ms - step.began_ms } : step));
}
