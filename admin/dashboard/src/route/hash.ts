/** The page's route, encoded in the address after the #. */
export type Route =
  | { page: "overview"; query: URLSearchParams }
  | { page: "function"; name: string; query: URLSearchParams }
  | { page: "host"; name: string; query: URLSearchParams }
  | { page: "timeline"; query: URLSearchParams }
  | { page: "deploy"; query: URLSearchParams }
  | { page: "operations"; query: URLSearchParams }
  | { page: "docs"; query: URLSearchParams }
  | { page: "nowhere"; query: URLSearchParams };

/** Parse `#/fn/digits?x=1`; an unknown address gives the route "nowhere". */
export function routeOf(hash: string): Route {
  const [path = "", ...rest] = hash.replace(/^#/, "").split("?");
  const query = new URLSearchParams(rest.join("?"));
  if (path === "" || path === "/") return { page: "overview", query };
  if (path === "/timeline") return { page: "timeline", query };
  if (path === "/deploy") return { page: "deploy", query };
  if (path === "/operations") return { page: "operations", query };
  if (path === "/docs") return { page: "docs", query };
  const [, kind, name] = /^\/(fn|host)\/([^/]+)$/.exec(path) ?? [];
  if (name) {
    try {
      return { page: kind === "fn" ? "function" : "host", name: decodeURIComponent(name), query };
    } catch {
      return { page: "nowhere", query };
    }
  }
  return { page: "nowhere", query };
}

/** `path` followed by the entries of `query` that are set. */
export function hashOf(path: string, query: Record<string, string> = {}): string {
  const set = Object.entries(query).filter(([, value]) => value !== "");
  const text = new URLSearchParams(set).toString();
  return `#${path}${text ? `?${text}` : ""}`;
}

export const functionHash = (name: string): string => `#/fn/${encodeURIComponent(name)}`;

export const hostHash = (name: string): string => `#/host/${encodeURIComponent(name)}`;
