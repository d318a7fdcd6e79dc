import { ADMIN, functionPath, type Client } from "../api/client.ts";
import { Problem, problemOf, wordsOf } from "../api/problem.ts";
import { waitBefore } from "../events/backoff.ts";
import { EventParser } from "../events/sse.ts";
import { LINES_MAX, type Lines } from "./lines.ts";

export type Following =
  { is: "connecting" } | { is: "live" } | { is: "away"; why: string } | { is: "ended"; why: string };

/** Lines requested at the start. */
const FIRST = 500;

export interface Told {
  onLines: () => void;
  onState: (state: Following) => void;
}

/**
 * Follows the output of a function's replicas into `lines` until `signal` aborts. A broken stream
 * restarts with no lines, since the server sends the last lines again.
 */
export async function follow(
  client: Client,
  name: string,
  lines: Lines,
  told: Told,
  signal: AbortSignal,
): Promise<void> {
  for (let attempt = 1; !signal.aborted; attempt += 1) {
    try {
      const heard = await once(client, name, lines, told, signal);
      if (heard) attempt = 1;
      told.onState({ is: "away", why: "the server ended the stream" });
    } catch (error) {
      if (signal.aborted) return;
      const isFinal = error instanceof Problem && [401, 403, 404].includes(error.status);
      told.onState(isFinal ? { is: "ended", why: error.message } : { is: "away", why: wordsOf(error) });
      if (isFinal) return;
    }
    await pause(waitBefore(attempt, Math.random()), signal);
  }
}

/** Read one stream to its end. Returns whether anything arrived. */
async function once(client: Client, name: string, lines: Lines, told: Told, signal: AbortSignal): Promise<boolean> {
  const headers = { Accept: "text/event-stream" };
  const path = `${ADMIN}${functionPath(name)}/logs?lines=${Math.min(FIRST, LINES_MAX)}`;
  const response = await client.send(path, { headers, signal, timeout_ms: null });
  if (!response.ok) throw problemOf(response.status, await response.text());
  if (response.body === null) return false;
  lines.clear();
  told.onLines();
  told.onState({ is: "live" });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new EventParser();
  for (let heard = false; ; heard = true) {
    const { done, value } = await reader.read();
    if (done) return heard;
    lines.add(parser.feed(value).flatMap(({ type, data }) => read(type, data)));
    told.onLines();
  }
}

/** The lines of one event; empty for an unknown event type. */
export function read(type: string, data: string): { replica: string; text: string; isNote?: boolean }[] {
  const { replica, text } = JSON.parse(data) as { replica: string; text?: string };
  if (type === "end") return [{ replica, text: "this replica has ended", isNote: true }];
  if (type !== "lines" || typeof text !== "string") return [];
  const texts = text.replace(/\n$/, "").split("\n");
  return texts.map((text) => ({ replica, text: plain(text) }));
}

/** Text without the control sequences of terminals (ECMA-48) and other control characters. */
export function plain(text: string): string {
  return text.replace(/\u001b\[[0-9;?]*[ -/]*[@-~]/g, "").replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, "");
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
