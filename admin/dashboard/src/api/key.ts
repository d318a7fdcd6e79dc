/**
 * The access key of this tab. It is kept for the tab's session and for this origin only (a cookie
 * would go to every port of the host), and leaves the address bar and the history at once.
 */
const PLACE = "fngate.key";
const FRAGMENT = /^#key=([^&]+)$/;

export function keptKey(): string | null {
  return sessionStorage.getItem(PLACE);
}

export function keepKey(key: string): void {
  sessionStorage.setItem(PLACE, key);
}

export function forgetKey(): void {
  sessionStorage.removeItem(PLACE);
}

/** The key that a fragment `#key=...` carries, decoded; null for any other fragment. */
export function keyOf(fragment: string): string | null {
  const found = FRAGMENT.exec(fragment)?.[1];
  if (!found) return null;
  try {
    return decodeURIComponent(found);
  } catch {
    return null;
  }
}

/** Take a key out of the page's address, if there is one; the address is then the overview's. */
export function takeKeyFromAddress(): string | null {
  const key = keyOf(location.hash);
  if (location.hash.startsWith("#key=")) history.replaceState(null, "", "#/");
  if (key) keepKey(key);
  return key;
}
