/**
 * The access key of this tab, kept in the tab's session storage for this origin only (a cookie
 * would be sent to every port of the host). It is removed from the address bar and the history at once.
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

/** The decoded key of a fragment `#key=...`; null for any other fragment. */
export function keyOf(fragment: string): string | null {
  const found = FRAGMENT.exec(fragment)?.[1];
  if (!found) return null;
  try {
    return decodeURIComponent(found);
  } catch {
    return null;
  }
}

/** Remove the key from the page's address, if it has one, and return it; the address becomes the overview's. */
export function takeKeyFromAddress(): string | null {
  const key = keyOf(location.hash);
  if (location.hash.startsWith("#key=")) history.replaceState(null, "", "#/");
  if (key) keepKey(key);
  return key;
}
