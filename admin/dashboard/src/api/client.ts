import { Problem, problemOf } from "./problem.ts";

export const ADMIN = "/admin/v1";
const TIMEOUT_MS = 30_000;

export interface Asking {
  method?: string;
  /** Sent as JSON. */
  json?: unknown;
  /** Sent unchanged. */
  body?: BodyInit;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  /** Timeout; null for streams and for calls that may be held. */
  timeout_ms?: number | null;
  /** What a redirect means: "error" by default, "manual" gives an opaque response. */
  redirect?: RequestRedirect;
  /** The key goes as Fn-Key: Authorization is left to a function's server. */
  isForServer?: boolean;
}

/** An answer with its body read. */
export interface Answered<T> {
  data: T;
  etag: string | null;
}

/**
 * HTTP client of this page's server. Every request carries the key. A 401 calls `onRefused`,
 * so that the page asks for another key.
 */
export class Client {
  constructor(
    readonly key: string,
    private readonly onRefused: (problem: Problem) => void = () => {},
    private readonly fetcher: typeof fetch = (input, init) => fetch(input, init),
  ) {}

  /** The response of any status. Throws Problem if none arrived, AbortError if aborted. */
  async send(path: string, asking: Asking = {}): Promise<Response> {
    const headers = new Headers(asking.headers);
    if (asking.isForServer) headers.set("Fn-Key", this.key);
    else headers.set("Authorization", `Bearer ${this.key}`);
    let body = asking.body;
    if (asking.json !== undefined) {
      headers.set("Content-Type", "application/json");
      body = JSON.stringify(asking.json);
    }
    const timeout_ms = asking.timeout_ms === undefined ? TIMEOUT_MS : asking.timeout_ms;
    const signals = [asking.signal, timeout_ms === null ? undefined : AbortSignal.timeout(timeout_ms)];
    const given = signals.filter((signal) => signal !== undefined);
    try {
      return await this.fetcher(path, {
        method: asking.method ?? "GET",
        headers,
        cache: "no-store",
        credentials: "omit",
        redirect: asking.redirect ?? "error",
        ...(body === undefined ? {} : { body }),
        ...(given.length ? { signal: AbortSignal.any(given) } : {}),
      });
    } catch (error) {
      if (asking.signal?.aborted) throw error;
      const isLate = error instanceof DOMException && error.name === "TimeoutError";
      const detail = isLate ? `the server did not answer within ${(timeout_ms ?? 0) / 1000} s` : "the server cannot be reached";
      throw new Problem(0, "unreachable", "No answer", detail);
    }
  }

  /** The answer's JSON. Throws Problem for any status other than 2xx. */
  async ask<T>(path: string, asking: Asking = {}): Promise<Answered<T>> {
    const response = await this.send(ADMIN + path, asking);
    const text = await response.text();
    if (!response.ok) {
      const problem = problemOf(response.status, text);
      if (response.status === 401) this.onRefused(problem);
      throw problem;
    }
    const data = (text ? JSON.parse(text) : null) as T;
    return { data, etag: response.headers.get("ETag") };
  }

  async get<T>(path: string, signal?: AbortSignal): Promise<T> {
    return (await this.ask<T>(path, signal ? { signal } : {})).data;
  }
}

/** `name` encoded as a path segment. */
export function functionPath(name: string): string {
  return `/functions/${encodeURIComponent(name)}`;
}

export const operationPath = (id: string): string => `/operations/${encodeURIComponent(id)}`;
