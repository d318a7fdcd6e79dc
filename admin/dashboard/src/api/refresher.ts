/**
 * Refetches on request: one fetch at a time, at most one per `least_ms`. Requests that arrive
 * meanwhile share the next fetch, so that a busy server is not polled for every event.
 */
export class Refresher {
  private readonly stopped = new AbortController();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private isRunning = false;
  private isAsked = false;
  private began_ms = -Infinity;

  /** `fetch` handles its own errors. */
  constructor(
    private readonly fetch: (signal: AbortSignal) => Promise<void>,
    private readonly least_ms: number,
    private readonly now_ms: () => number = () => performance.now(),
  ) {}

  ask(): void {
    this.isAsked = true;
    if (this.isRunning || this.timer !== undefined || this.stopped.signal.aborted) return;
    const wait_ms = Math.max(0, this.began_ms + this.least_ms - this.now_ms());
    this.timer = setTimeout(() => void this.run(), wait_ms);
  }

  stop(): void {
    this.stopped.abort();
    clearTimeout(this.timer);
  }

  private async run(): Promise<void> {
    this.timer = undefined;
    this.isAsked = false;
    this.isRunning = true;
    this.began_ms = this.now_ms();
    await this.fetch(this.stopped.signal);
    this.isRunning = false;
    if (this.isAsked) this.ask();
  }
}
