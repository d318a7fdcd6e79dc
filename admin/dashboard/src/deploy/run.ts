import { functionPath, operationPath, type Client } from "../api/client.ts";
import { Problem, wordsOf } from "../api/problem.ts";
import type { BundleEntry, OperationResult, OperationRow } from "../api/types.ts";
import { bytes } from "../design/format.ts";
import type { Ready } from "./draft.ts";
import { advanced, ended, moved, type Step } from "./progress.ts";
import { digestOf } from "./sha256.ts";
import { uploaded, type Upload } from "./upload.ts";

export interface Run {
  name: string;
  /** The image or the model's file; "" for a deploy that another page began. */
  what: string;
  /** "lost": the server may have accepted it, and how it ended is not known here. */
  state: "running" | "done" | "failed" | "cancelled" | "lost";
  isCancelling: boolean;
  /** Bytes are leaving this page: they stop when it is closed. */
  isSending: boolean;
  steps: readonly Step[];
  /** Id of the server's operation, "" before it is accepted. */
  operation: string;
  problem: Problem | null;
  result: OperationResult | null;
}

const POLL_S = 20;
const RETRY_MS = 500;
/** Polls in a row without an answer before it is given up. A restarted server resumes its operations. */
const RETRIES_MAX = 60;
const UNAVAILABLE = 503;

export interface World {
  upload: Upload;
  now_ms: () => number;
  pause: (ms: number) => Promise<void>;
}

const REAL: World = {
  upload: uploaded,
  now_ms: () => performance.now(),
  pause: (ms) => new Promise((done) => setTimeout(done, ms)),
};

/** The deploy of this page, one at a time. It outlives the form, so that other pages can be visited meanwhile. */
export class DeployDesk {
  /** Files dropped on another page, for the form to take. */
  offered: readonly File[] = [];
  run: Run | null = null;
  private readonly listeners = new Set<() => void>();
  private stopping = new AbortController();

  constructor(
    private readonly client: Client,
    private readonly world: World = REAL,
  ) {}

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly read = (): Run | null => this.run;

  /** Hash and upload the files, start the operation and follow it. Resolves at its end; never rejects. */
  async start(ready: Ready): Promise<void> {
    const signal = this.begin(ready.name, ready.what);
    await this.settle(signal, async () => {
      const wire = await this.send(ready.files, signal);
      signal.throwIfAborted();
      // Not aborted: an accepted operation must be known, to be cancelled.
      this.set({ isSending: false, steps: moved(this.run?.steps ?? [], "accept", "", null, this.world.now_ms()) });
      const asking = { method: "POST", json: ready.bodyOf(wire) };
      const { data } = await this.client.ask<OperationRow>(`${functionPath(ready.name)}/revisions`, asking);
      this.set({ operation: data.id });
      if (this.run?.isCancelling) void this.cancel();
      return this.follow(data);
    });
  }

  /** Follow an operation that was started before, for example before this page was loaded again. */
  async resume(id: string): Promise<void> {
    const signal = this.begin("", "");
    this.set({ operation: id });
    await this.settle(signal, async () => {
      const { data } = await this.client.ask<OperationRow>(operationPath(id));
      if (data.kind !== "deploy") throw new Problem(404, "unknown", "Not found", `the operation ${id} is no deploy`);
      this.set({ name: data.name });
      return this.follow(data);
    });
  }

  /** Cancel: an upload ends at once, an operation by the server, without any change. */
  async cancel(): Promise<void> {
    if (this.run?.state !== "running") return;
    const { operation, isSending } = this.run;
    this.set({ isCancelling: true });
    if (isSending) this.stopping.abort();
    if (!operation) return;
    try {
      await this.client.ask(operationPath(operation), { method: "DELETE", timeout_ms: null });
    } catch (error) {
      if (this.run?.state === "running") this.set({ isCancelling: false, problem: problemOf(error) });
    }
  }

  /** Forget a deploy that has ended. */
  dismiss(): void {
    if (this.run?.state !== "running") this.put(null);
  }

  /** End what runs in this page. An accepted operation goes on. */
  close(): void {
    this.stopping.abort();
    this.listeners.clear();
  }

  private begin(name: string, what: string): AbortSignal {
    this.stopping.abort();
    this.stopping = new AbortController();
    this.put({ name, what, state: "running", isCancelling: false, isSending: what !== "", steps: [], operation: "", problem: null, result: null });
    return this.stopping.signal;
  }

  private async settle(signal: AbortSignal, work: () => Promise<OperationRow>): Promise<void> {
    let end: Partial<Run>;
    try {
      const operation = await work();
      const problem = operation.state === "failed" ? documentOf(operation.error) : null;
      end = { state: operation.state, result: operation.result, problem };
    } catch (error) {
      const problem = problemOf(error);
      const isUnknown = !this.run?.isSending && (this.run?.operation !== "" || hasNoVerdict(problem));
      end = signal.aborted ? { state: "cancelled" } : { state: isUnknown ? "lost" : "failed", problem };
    }
    // A later deploy has this one's place.
    if (this.stopping.signal !== signal) return;
    this.set({ ...end, isSending: false, steps: ended(this.run?.steps ?? [], this.world.now_ms()) });
  }

  /** Upload the files that the server lacks. */
  private async send(files: readonly File[], signal: AbortSignal): Promise<BundleEntry[]> {
    const wire: BundleEntry[] = [];
    const total = files.reduce((sum, file) => sum + file.size, 0);
    let read = 0;
    for (const file of files) {
      const sha256 = await digestOf(file, signal, (count) => this.share("read", (read += count), total)).catch((error: unknown) => {
        throw signal.aborted ? error : unreadable(file);
      });
      wire.push({ path: file.name, size: file.size, sha256 });
    }
    const missing = await this.missing(files, wire, signal);
    const bytesMissing = missing.reduce((sum, [file]) => sum + file.size, 0);
    let before = 0;
    for (const [file, sha256] of missing) {
      this.share("send", before, bytesMissing);
      await this.world.upload(this.client, `/blobs/${sha256}`, file, (sent) => this.share("send", before + sent, bytesMissing), signal);
      before += file.size;
    }
    return wire;
  }

  private async missing(files: readonly File[], wire: readonly BundleEntry[], signal: AbortSignal): Promise<[File, string][]> {
    const missing = new Map<string, File>();
    for (const [at, { sha256, size }] of wire.entries()) {
      const response = await this.client.send(`/admin/v1/blobs/${sha256}?size=${size}`, { method: "HEAD", signal });
      if (response.status === 404) missing.set(sha256, files[at]!);
      // A HEAD has no body: the upload of the same file has the reason.
      else if (!response.ok) throw new Problem(response.status, "", `HTTP ${response.status}`, "the server refuses uploads with this key");
    }
    return [...missing].map(([sha256, file]) => [file, sha256]);
  }

  private async follow(first: OperationRow): Promise<OperationRow> {
    let operation = first;
    const signal = this.stopping.signal;
    for (let away = 0; operation.state === "running"; ) {
      this.set({ steps: advanced(this.run?.steps ?? [], operation.phase, this.world.now_ms()) });
      const query = new URLSearchParams({ wait: String(POLL_S), phase: operation.phase });
      try {
        operation = (await this.client.ask<OperationRow>(`${operationPath(operation.id)}?${query}`, { signal, timeout_ms: (POLL_S + 20) * 1000 })).data;
        away = 0;
      } catch (error) {
        const isAway = error instanceof Problem && (error.status === 0 || error.status === UNAVAILABLE);
        if (signal.aborted || !isAway || (away += 1) > RETRIES_MAX) throw error;
        await this.world.pause(RETRY_MS);
      }
    }
    return operation;
  }

  private share(name: string, done: number, total: number): void {
    const text = `${bytes(done)} of ${bytes(total)}`;
    this.set({ steps: moved(this.run?.steps ?? [], name, text, total ? done / total : 1, this.world.now_ms()) });
  }

  private set(change: Partial<Run>): void {
    if (this.run) this.put({ ...this.run, ...change });
  }

  private put(run: Run | null): void {
    this.run = run;
    for (const listener of [...this.listeners]) listener();
  }
}

function documentOf(fields: Record<string, unknown>): Problem {
  const text = (key: string) => (typeof fields[key] === "string" ? fields[key] : "");
  const status = typeof fields["status"] === "number" ? fields["status"] : 500;
  return new Problem(status, text("code"), text("title") || "The deploy failed", text("detail") || "no reason given", fields);
}

/** Whether no answer of the server itself arrived, which may have accepted the request. */
function hasNoVerdict({ status, code }: Problem): boolean {
  return status === 0 || code === "supervisor_away" || (code === "" && status >= 502);
}

/** Browsers give no content of a file that was changed or removed after it was chosen. */
function unreadable({ name }: File): Problem {
  return new Problem(0, "unreadable", "The file cannot be read", `${name} was changed or removed after it was chosen: choose it again`);
}

function problemOf(error: unknown): Problem {
  return error instanceof Problem ? error : new Problem(0, "", "It could not be sent", wordsOf(error));
}
