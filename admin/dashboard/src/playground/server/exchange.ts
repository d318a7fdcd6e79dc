import type { Client } from "../../api/client.ts";
import { Problem, problemOf } from "../../api/problem.ts";
import { URGENCY } from "../call.ts";
import { receiptOf, type Receipt } from "../receipt.ts";
import type { Ready } from "./request.ts";
import { Collected, type Arrived } from "./stream.ts";

export type Phase = "waiting" | "open" | "done" | "aborted" | "broken";

/** An exchange as the page shows it, at one moment. Milliseconds since the request was sent. */
export interface Seen {
  phase: Phase;
  /** 0 before the head and if none arrived. */
  status: number;
  headers: [string, string][];
  type: string;
  /** When the head arrived. */
  headMs: number | null;
  /** When the body's first byte arrived. */
  firstMs: number | null;
  ms: number;
  size: number;
  isEvents: boolean;
  events: readonly Arrived[];
  eventCount: number;
  text: string;
  cut: number;
  /** A picture or a sound that is the whole answer. */
  media: Blob | null;
  request_id: string;
  receipt: Receipt | null;
  /** An error that fngate made, or the reason for a missing answer. */
  problem: Problem | null;
}

export const BEFORE: Seen = {
  phase: "waiting",
  status: 0,
  headers: [],
  type: "",
  headMs: null,
  firstMs: null,
  ms: 0,
  size: 0,
  isEvents: false,
  events: [],
  eventCount: 0,
  text: "",
  cut: 0,
  media: null,
  request_id: "",
  receipt: null,
  problem: null,
};

const REDIRECT = "The server answered with a redirect. A page cannot read it: curl shows its Location.";

/**
 * Send the request and call `onChange` when the head and each piece of the body arrive, and at the end.
 * `signal` aborts the exchange: the server sees that its client is gone.
 */
export async function exchange(
  client: Client,
  ready: Ready,
  signal: AbortSignal,
  onChange: (seen: Seen) => void,
  now_ms: () => number = () => performance.now(),
): Promise<void> {
  const began = now_ms();
  const since = () => now_ms() - began;
  let seen = BEFORE;
  let collected: Collected | null = null;
  const tell = (phase: Phase, problem: Problem | null = null) => {
    const body = collected ? bodyOf(collected, phase !== "open") : {};
    seen = { ...seen, ...body, phase, ms: since(), problem: problem ?? ownProblem({ ...seen, ...body }) };
    onChange(seen);
  };
  try {
    const response = await client.send(ready.url, { ...askingOf(ready), signal });
    seen = { ...seen, ...headOf(response), headMs: since() };
    if (response.type === "opaqueredirect") return tell("done", new Problem(0, "", "Redirect", REDIRECT));
    collected = new Collected(seen.type);
    tell("open");
    const reader = response.body?.getReader();
    for (let piece = await reader?.read(); piece && !piece.done; piece = await reader?.read()) {
      collected.feed(piece.value, since());
      tell("open");
    }
    tell("done");
  } catch (error) {
    if (signal.aborted) return tell("aborted");
    tell("broken", error instanceof Problem ? error : brokenOff(error, seen));
  }
}

function askingOf({ method, headers, body, wait_s, priority }: Ready) {
  const urgency = URGENCY[priority];
  const own: Record<string, string> = {
    ...(wait_s === null ? {} : { Prefer: `wait=${wait_s}` }),
    ...(urgency ? { Priority: urgency } : {}),
  };
  for (const [name, value] of headers) {
    const same = Object.keys(own).find((known) => known.toLowerCase() === name.toLowerCase());
    own[same ?? name] = same ? `${own[same]}, ${value}` : value;
  }
  const sent = body === null ? {} : { body };
  return { method, headers: own, timeout_ms: null, redirect: "manual" as const, isForServer: true, ...sent };
}

function headOf(response: Response): Partial<Seen> {
  const header = (name: string) => response.headers.get(name) ?? "";
  return {
    status: response.status,
    headers: [...response.headers],
    type: header("Content-Type"),
    request_id: header("X-Request-Id"),
    receipt: receiptOf(header("Server-Timing")),
  };
}

function bodyOf(collected: Collected, isEnd: boolean): Partial<Seen> {
  const { size, firstMs, isEvents, eventCount } = collected;
  const text = isEnd ? collected.whole() : { text: collected.soFar, cut: 0 };
  const media = isEnd ? collected.media() : null;
  return { size, firstMs, isEvents, events: [...collected.events], eventCount, media, ...text };
}

/** The problem document of fngate; an error answer of the server's own is shown as it is. */
function ownProblem(seen: Seen): Problem | null {
  if (seen.status < 400 || !seen.type.startsWith("application/problem+json")) return null;
  const problem = problemOf(seen.status, seen.text);
  return problem.code ? problem : null;
}

function brokenOff(error: unknown, seen: Seen): Problem {
  const what = error instanceof RangeError ? error.message : `it ended early, after ${seen.size} bytes`;
  return new Problem(seen.status, "broken", "The answer broke off", what);
}
