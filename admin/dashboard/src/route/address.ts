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

/** The route of the page's present address. */
export function useRoute(): Route {
  const hash = useSyncExternalStore(subscribe, () => location.hash);
  return useMemo(() => routeOf(hash), [hash]);
}

/** Go to `hash`, as a step that "back" takes back. */
export function go(hash: string): void {
  location.hash = hash;
}

/** Let the address say `hash` without a step: for what is typed and chosen on one page. */
export function settle(hash: string): void {
  if (location.hash === hash) return;
  history.replaceState(null, "", hash);
  for (const listener of [...listeners]) listener();
}
