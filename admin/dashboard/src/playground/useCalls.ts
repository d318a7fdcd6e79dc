import { useCallback, useEffect, useRef, useState } from "react";
import { useSite } from "../store/hooks.ts";
import { invoke, type Asked, type Outcome } from "./call.ts";

export interface Call {
  n: number;
  at_s: number;
  outcome: Outcome;
}

export const HISTORY = 10;

/** The calls of this page: one at a time; the last ten are kept. */
export function useCalls(name: string) {
  const { client } = useSite();
  const [history, setHistory] = useState<readonly Call[]>([]);
  const [isOut, setIsOut] = useState(false);
  const stop = useRef<AbortController | null>(null);
  useEffect(() => () => stop.current?.abort(), [name]);
  const call = useCallback(
    async (asked: Asked): Promise<Outcome | null> => {
      const mine = new AbortController();
      stop.current = mine;
      setIsOut(true);
      try {
        const outcome = await invoke(client, name, asked, mine.signal);
        setHistory((before) =>
          [{ n: (before[0]?.n ?? 0) + 1, at_s: Date.now() / 1000, outcome }, ...before].slice(0, HISTORY),
        );
        return outcome;
      } catch {
        return null; // Aborted: the server cancels the request.
      } finally {
        setIsOut(false);
      }
    },
    [client, name],
  );
  const cancel = useCallback(() => stop.current?.abort(), []);
  return { history, isOut, call, cancel };
}
