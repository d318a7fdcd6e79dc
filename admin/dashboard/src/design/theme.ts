import { useSyncExternalStore } from "react";

export type Theme = "light" | "dark";

const PLACE = "fngate.theme";
const listeners = new Set<() => void>();
const dark = window.matchMedia("(prefers-color-scheme: dark)");

/** The theme chosen on this page, else the system's. */
export function theme(): Theme {
  const chosen = localStorage.getItem(PLACE);
  if (chosen === "light" || chosen === "dark") return chosen;
  return dark.matches ? "dark" : "light";
}

function show(): void {
  document.documentElement.dataset["theme"] = theme();
  for (const listener of [...listeners]) listener();
}

/** Choose a theme. Choosing the system's theme follows the system again instead of storing it. */
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
