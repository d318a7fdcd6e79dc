/** The request that the playground sends to a server function: checks, headers, curl line. */

import type { Priority } from "../call.ts";

export const METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"] as const;
export type Method = (typeof METHODS)[number];

/** The form's texts. `headers` has one "Name: value" per line. */
export interface Draft {
  method: Method;
  path: string;
  headers: string;
  body: string;
}

export interface Ready {
  method: Method;
  /** Path and query on this server, as "/fn/web/items?q=1". */
  url: string;
  headers: [string, string][];
  /** A form gets its Content-Type from the browser. */
  body: string | FormData | null;
  wait_s: number | null;
  priority: Priority;
}

export interface Faults {
  path?: string;
  headers?: string;
}

/** RFC 9110 section 5.6.2. */
const TOKEN = /^[!#$%&'*+.^_`|~\w-]+$/;
/** Names that a page may not set (Fetch standard, section 2.2.2), and the page's own key. */
const OWN =
  /^(accept-charset|accept-encoding|connection|content-length|cookie2?|date|dnt|expect|fn-key|host|keep-alive|origin|referer|te|trailer|transfer-encoding|upgrade|via|proxy-.*|sec-.*)$/i;

export const hasBody = (method: Method): boolean => method !== "GET" && method !== "HEAD";

/** The URL of `path` at the function `name`, or why there is none. */
export function urlOf(name: string, path: string): { url: string } | { fault: string } {
  const prefix = `/fn/${encodeURIComponent(name)}`;
  if (!path.startsWith("/")) return { fault: "a path begins with /" };
  if (path.includes("#")) return { fault: "# ends a path in a browser; write %23" };
  // The browser resolves dots and turns a backslash into a slash.
  const { pathname, search } = new URL(prefix + path, "http://server.invalid");
  if (!pathname.startsWith(`${prefix}/`)) return { fault: `this path leaves the function: ${pathname}` };
  return { url: pathname + search };
}

/** The header lines, or what is wrong with one of them. */
export function headersOf(text: string): { headers: [string, string][] } | { fault: string } {
  const headers: [string, string][] = [];
  for (const line of text.split("\n")) {
    if (!line.trim()) continue;
    const colon = line.indexOf(":");
    const name = line.slice(0, Math.max(0, colon)).trim();
    const value = line.slice(colon + 1).trim();
    if (!TOKEN.test(name)) return { fault: `expected Name: value, got ${line.slice(0, 60)}` };
    if (OWN.test(name)) return { fault: `${name}: a page cannot send it; use curl` };
    if (/[^\t\x20-\x7e\x80-\xff]/.test(value)) return { fault: `${name}: a header has Latin-1 text only` };
    headers.push([name, value]);
  }
  return { headers };
}

/** The call of a Python function with a body, as a request. */
export function callOf(name: string, body: string | FormData, wait_s: number | null, priority: Priority): Ready {
  const headers: [string, string][] = typeof body === "string" ? [["Content-Type", "application/json"]] : [];
  return { method: "POST", url: `/fn/${encodeURIComponent(name)}`, headers, body, wait_s, priority };
}

/** The draft as a request, or its faults. */
export function readyOf(name: string, draft: Draft, wait_s: number | null, priority: Priority): Ready | { faults: Faults } {
  const at = urlOf(name, draft.path.trim());
  const given = headersOf(draft.headers);
  if ("fault" in at || "fault" in given) {
    return {
      faults: {
        ...("fault" in at ? { path: at.fault } : {}),
        ...("fault" in given ? { headers: given.fault } : {}),
      },
    };
  }
  const body = hasBody(draft.method) && draft.body ? draft.body : null;
  return { method: draft.method, url: at.url, headers: given.headers, body, wait_s, priority };
}

const quoted = (text: string): string => (/^[\w./:@%+=,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The same request as a command. `key` is a placeholder, so that no secret is copied by accident. */
export function curlOf({ method, url, headers, body }: Ready, origin: string): string {
  const words = ["curl", "-N"];
  if (method === "HEAD") words.push("-I");
  else if (method !== (body === null ? "GET" : "POST")) words.push("-X", method);
  words.push(quoted(origin + url), "-H", '"Fn-Key: $FN_KEY"');
  for (const [name, value] of headers) words.push("-H", quoted(`${name}: ${value}`));
  if (body instanceof FormData) {
    for (const [field, value] of body) {
      const shown = typeof value === "string" ? value : `@${value.name}`;
      // curl would read a file for a text that begins with @ or <.
      words.push(/^[@<]/.test(shown) && typeof value === "string" ? "--form-string" : "-F", quoted(`${field}=${shown}`));
    }
  } else if (body !== null) {
    // curl would name a form otherwise.
    if (!headers.some(([name]) => name.toLowerCase() === "content-type")) words.push("-H", "'Content-Type: text/plain'");
    words.push("--data-binary", quoted(body));
  }
  return words.join(" ");
}
