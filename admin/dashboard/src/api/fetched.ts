import { useCallback, useEffect, useRef, useState } from "react";
import { useSite } from "../store/hooks.ts";
import type { Client } from "./client.ts";
import { Problem, wordsOf } from "./problem.ts";
import { Refresher } from "./refresher.ts";

export interface Fetched<T> {
  /** The last answer for this path, also while it is fetched again. */
  data: T | null;
  etag: string | null;
  /** The error of the last fetch; null if it succeeded. */
  problem: Problem | null;
  reload: () => void;
}

interface State<T> {
  path: string;
  data: T | null;
  etag: string | null;
  problem: Problem | null;
}

const LEAST_MS = 2_000;

/**
 * The admin API's answer at `path`, fetched again whenever `version` changes while the
 * component is mounted. Nothing is fetched while `path` is null.
 */
export function useFetched<T>(path: string | null, version: string | number = "", least_ms = LEAST_MS): Fetched<T> {
  const { client } = useSite();
  const [state, setState] = useState<State<T> | null>(null);
  const refresher = useRef<Refresher | null>(null);
  useEffect(() => {
    if (path === null) return;
    const one = new Refresher((signal) => take(client, path, signal, setState), least_ms);
    refresher.current = one;
    return () => one.stop();
  }, [client, path, least_ms]);
  useEffect(() => refresher.current?.ask(), [client, path, least_ms, version]);
  const reload = useCallback(() => refresher.current?.ask(), []);
  const mine = state !== null && state.path === path ? state : null;
  return { data: mine?.data ?? null, etag: mine?.etag ?? null, problem: mine?.problem ?? null, reload };
}

type Set<T> = (change: (before: State<T> | null) => State<T>) => void;

async function take<T>(client: Client, path: string, signal: AbortSignal, set: Set<T>): Promise<void> {
  try {
    const { data, etag } = await client.ask<T>(path, { signal });
    if (!signal.aborted) set(() => ({ path, data, etag, problem: null }));
  } catch (error) {
    if (signal.aborted) return;
    const problem = error instanceof Problem ? error : new Problem(0, "", "", wordsOf(error));
    set((before) => {
      const known = before?.path === path ? before : null;
      return { path, data: known?.data ?? null, etag: known?.etag ?? null, problem };
    });
  }
}
