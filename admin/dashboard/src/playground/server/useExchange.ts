import { useCallback, useEffect, useRef, useState } from "react";
import { useSite } from "../../store/hooks.ts";
import { exchange, type Seen } from "./exchange.ts";
import type { Ready } from "./request.ts";

/** One exchange at a time; it is drawn once per frame at most, and aborted when the page is left. */
export function useExchange(name: string) {
  const { client } = useSite();
  const [seen, setSeen] = useState<Seen | null>(null);
  const [isOut, setIsOut] = useState(false);
  const stop = useRef<AbortController | null>(null);
  useEffect(() => () => stop.current?.abort(), [name]);
  const send = useCallback(
    async (ready: Ready) => {
      const mine = new AbortController();
      stop.current?.abort();
      stop.current = mine;
      setSeen(null);
      setIsOut(true);
      const draw = framed<Seen>((one) => stop.current === mine && setSeen(one));
      await exchange(client, ready, mine.signal, draw);
      if (stop.current === mine) setIsOut(false);
    },
    [client],
  );
  const abort = useCallback(() => stop.current?.abort(), []);
  return { seen, isOut, send, abort };
}

/** `draw` with the newest value, once per frame. */
function framed<T>(draw: (value: T) => void): (value: T) => void {
  let newest: T;
  let isAsked = false;
  return (value) => {
    newest = value;
    if (isAsked) return;
    isAsked = true;
    requestAnimationFrame(() => {
      isAsked = false;
      draw(newest);
    });
  };
}
