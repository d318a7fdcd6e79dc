import { useMemo, useSyncExternalStore } from "react";
import { routeOf, type Route } from "./hash.ts";

const listeners = new Set<() => void>();

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  window.addEventListener("hashchange", listener);
  return () => {
    listeners.delete(listener);
    window.removeEventListener("hashchange", listener);
  };
}

/** The route of the current address. */
export function useRoute(): Route {
  const hash = useSyncExternalStore(subscribe, () => location.hash);
  return useMemo(() => routeOf(hash), [hash]);
}

/** Navigate to `hash` and add an entry to the browser's history. */
export function go(hash: string): void {
  location.hash = hash;
}

/** Replace the address by `hash` without a history entry: for filters and fields of one page. */
export function settle(hash: string): void {
  if (location.hash === hash) return;
  history.replaceState(null, "", hash);
  for (const listener of [...listeners]) listener();
}
