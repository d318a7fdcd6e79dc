import { useCallback, useSyncExternalStore } from "react";

/** The replica that the pointer or the focus is on; "" for none. One for the page, as there is one pointer. */
let pointed = "";
const listeners = new Set<() => void>();

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function point(id: string): void {
  if (id === pointed) return;
  pointed = id;
  for (const listener of [...listeners]) listener();
}

/** Whether replica `id` is pointed at, and a function that says which replica is. */
export function usePointed(id: string): [boolean, (id: string) => void] {
  const read = useCallback(() => pointed === id, [id]);
  return [useSyncExternalStore(subscribe, read), point];
}
