import type { Client } from "../api/client.ts";
import { Problem, problemOf } from "../api/problem.ts";
import { READ_MAX, shownOf, type Shown } from "./answer.ts";
import type { Body } from "./form.ts";
import { receiptOf, type Receipt } from "./receipt.ts";

export type Priority = "high" | "normal" | "low";

export interface Asked {
  body: Body;
  /** Maximum seconds to be held; null for the function's setting. */
  wait_s: number | null;
  priority: Priority;
}

export interface Outcome {
  /** 0 if no answer arrived. */
  status: number;
  ms: number;
  type: string;
  size: number;
  revision: string;
  request_id: string;
  /** The options that the server applied. */
  applied: string;
  receipt: Receipt | null;
  problem: Problem | null;
  shown: Shown;
}

/** RFC 9218: fngate treats urgency 0-2 as high, 4-7 as low. */
export const URGENCY: Record<Priority, string | null> = { high: "u=1", normal: null, low: "u=6" };
const NOTHING: Shown = { top: [], text: "", cut: 0 };

/** Call the function. Throws only AbortError, when `signal` aborts. */
export async function invoke(client: Client, name: string, asked: Asked, signal: AbortSignal): Promise<Outcome> {
  const headers: Record<string, string> = { "Content-Type": asked.body.type };
  if (asked.wait_s !== null) headers["Prefer"] = `wait=${asked.wait_s}`;
  const urgency = URGENCY[asked.priority];
  if (urgency) headers["Priority"] = urgency;
  const began = performance.now();
  const path = `/fn/${encodeURIComponent(name)}`;
  try {
    const asking = { method: "POST", headers, body: asked.body.content, signal, timeout_ms: null };
    const response = await client.send(path, asking);
    const { bytes, size } = await read(response, READ_MAX);
    return outcomeOf(response, bytes, size, performance.now() - began);
  } catch (error) {
    if (signal.aborted) throw error;
    const problem =
      error instanceof Problem ? error : new Problem(0, "unreachable", "No answer", "the answer broke off");
    const ms = performance.now() - began;
    return { ...outcomeOf(new Response(null), new Uint8Array(), 0, ms), status: 0, problem };
  }
}

function outcomeOf(response: Response, bytes: Uint8Array, size: number, ms: number): Outcome {
  const header = (name: string) => response.headers.get(name) ?? "";
  const type = header("Content-Type");
  const shown = size ? shownOf(type, bytes) : NOTHING;
  return {
    status: response.status,
    ms,
    type,
    size,
    revision: header("Fn-Revision"),
    request_id: header("X-Request-Id"),
    applied: header("Preference-Applied"),
    receipt: receiptOf(header("Server-Timing")),
    problem: response.ok ? null : problemOf(response.status, new TextDecoder().decode(bytes)),
    shown: { ...shown, cut: shown.cut + size - bytes.length },
  };
}

/** The body's first `max + 1` bytes, and its size if known. */
async function read(response: Response, max: number): Promise<{ bytes: Uint8Array; size: number }> {
  const said = Number(response.headers.get("Content-Length") ?? 0);
  const reader = response.body?.getReader();
  const pieces: Uint8Array[] = [];
  let size = 0;
  while (reader && size <= max) {
    const { done, value } = await reader.read();
    if (done) break;
    pieces.push(value);
    size += value.length;
  }
  if (size > max) await reader?.cancel();
  const bytes = new Uint8Array(await new Blob(pieces as BlobPart[]).arrayBuffer());
  return { bytes, size: Math.max(size, said) };
}
