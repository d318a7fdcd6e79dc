import { functionPath, type Client } from "../api/client.ts";
import { Problem } from "../api/problem.ts";
import type { Operation, Scaling } from "../api/types.ts";

/** What can be done to a function. Each throws Problem with the server's words. */

const WARM_WAIT_S = 600;

/** Wakes it and answers when it is ready, or says why it is not. */
export async function warm(client: Client, name: string): Promise<{ was_warm: boolean; took_ms: number }> {
  const path = `${functionPath(name)}/warm?wait=${WARM_WAIT_S}`;
  const timeout_ms = (WARM_WAIT_S + 10) * 1000;
  return (await client.ask<{ was_warm: boolean; took_ms: number }>(path, { method: "POST", timeout_ms })).data;
}

/** Asks idle replicas to go; `stay` is how many do not, as they are busy or kept by `min`. */
export async function sleep(client: Client, name: string): Promise<{ asked: number; stay: number; min: number }> {
  const path = `${functionPath(name)}/sleep`;
  return (await client.ask<{ asked: number; stay: number; min: number }>(path, { method: "POST" })).data;
}

/** The scaling as it is, and the version to change it by. */
export async function readScaling(client: Client, name: string): Promise<{ scaling: Scaling; etag: string }> {
  const { data, etag } = await client.ask<Scaling>(functionPath(name));
  if (!etag) throw new Problem(0, "no_etag", "No version", "the server's answer has no ETag to change it by");
  return { scaling: { min: data.min, max: data.max, idle_s: data.idle_s }, etag };
}

/** `etag` is the version that `change` was made from: another's change in between is refused. */
export async function scale(client: Client, name: string, change: Partial<Scaling>, etag: string): Promise<Scaling> {
  const asking = { method: "PATCH", json: change, headers: { "If-Match": etag } };
  return (await client.ask<Scaling>(functionPath(name), asking)).data;
}

/** To revision number `to`, or to the one before where that is null; the operation goes on by itself. */
export async function rollback(client: Client, name: string, to: number | null): Promise<Operation> {
  const asking = { method: "POST", json: to === null ? {} : { to } };
  return (await client.ask<Operation>(`${functionPath(name)}/rollback`, asking)).data;
}

export async function remove(client: Client, name: string): Promise<void> {
  await client.ask(functionPath(name), { method: "DELETE" });
}
