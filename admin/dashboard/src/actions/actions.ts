import { functionPath, type Client } from "../api/client.ts";
import { Problem } from "../api/problem.ts";
import type { OperationRow, Parked, Scaling, Slept, Warmed } from "../api/types.ts";

/** Actions on one function. Each throws Problem with the server's answer. */

const WARM_WAIT_S = 600;

/** Ask for something that the server answers once it is done, or after WARM_WAIT_S. */
async function awaited<T>(client: Client, name: string, verb: string): Promise<T> {
  const path = `${functionPath(name)}/${verb}?wait=${WARM_WAIT_S}`;
  return (await client.ask<T>(path, { method: "POST", timeout_ms: (WARM_WAIT_S + 10) * 1000 })).data;
}

/** Warm the function. Resolves when a replica is ready; throws Problem with the reason if none becomes ready. */
export const warm = (client: Client, name: string): Promise<Warmed> => awaited(client, name, "warm");

/** Wake a parked replica. Resolves as `warm`. */
export const unpark = (client: Client, name: string): Promise<Warmed> => awaited(client, name, "unpark");

/** Have idle replicas sleep. Resolves once they do; `reasons` says why others stay awake. */
export const park = (client: Client, name: string): Promise<Parked> => awaited(client, name, "park");

/** Ask idle replicas to stop. `stay` counts those that keep running: busy ones, or kept by `min`. */
export async function sleep(client: Client, name: string): Promise<Slept> {
  const path = `${functionPath(name)}/sleep`;
  return (await client.ask<Slept>(path, { method: "POST" })).data;
}

/** The current scaling settings and their version (ETag). */
export async function readScaling(client: Client, name: string): Promise<{ scaling: Scaling; etag: string }> {
  const { data, etag } = await client.ask<Scaling>(functionPath(name));
  if (!etag) throw new Problem(0, "no_etag", "No version", "the server's answer lacks the ETag that a change needs");
  return { scaling: { min: data.min, max: data.max, idle_s: data.idle_s }, etag };
}

/** Change the scaling. The server refuses it if somebody changed the settings since version `etag`. */
export async function scale(client: Client, name: string, change: Partial<Scaling>, etag: string): Promise<Scaling> {
  const asking = { method: "PATCH", json: change, headers: { "If-Match": etag } };
  return (await client.ask<Scaling>(functionPath(name), asking)).data;
}

/** Start a rollback to revision number `to`, or to the previous one if null. The operation runs on the server. */
export async function rollback(client: Client, name: string, to: number | null): Promise<OperationRow> {
  const asking = { method: "POST", json: to === null ? {} : { to } };
  return (await client.ask<OperationRow>(`${functionPath(name)}/rollback`, asking)).data;
}

export async function remove(client: Client, name: string): Promise<void> {
  await client.ask(functionPath(name), { method: "DELETE" });
}
