import { useSyncExternalStore } from "react";

export type Theme = "light" | "dark";

const PLACE = "fngate.theme";
const listeners = new Set<() => void>();
const dark = window.matchMedia("(prefers-color-scheme: dark)");

/** What was chosen here, else what the system has. */
export function theme(): Theme {
  const chosen = localStorage.getItem(PLACE);
  if (chosen === "light" || chosen === "dark") return chosen;
  return dark.matches ? "dark" : "light";
}

function show(): void {
  document.documentElement.dataset["theme"] = theme();
  for (const listener of [...listeners]) listener();
}

/** Choose one; the one that the system has is followed again, not kept. */
export function choose(next: Theme): void {
  const system: Theme = dark.matches ? "dark" : "light";
  if (next === system) localStorage.removeItem(PLACE);
  else localStorage.setItem(PLACE, next);
  show();
}

export function startTheme(): void {
  dark.addEventListener("change", show);
  show();
}

export function useTheme(): Theme {
  return useSyncExternalStore((listener) => {
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, theme);
}
