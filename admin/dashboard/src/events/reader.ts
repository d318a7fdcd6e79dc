import { ADMIN, type Client } from "../api/client.ts";
import { problemOf, wordsOf, type Problem } from "../api/problem.ts";
import type { ServerEvent } from "../api/types.ts";
import { waitBefore } from "./backoff.ts";
import { EventParser } from "./sse.ts";

/** The server sends a beat every second: after this much silence the connection counts as lost. */
const SILENCE_MS = 10_000;

export type Connection =
  | { is: "connecting" }
  | { is: "live" }
  | { is: "reconnecting"; why: string; attempt: number; next_ms: number }
  | { is: "refused"; why: string };

export interface Reading {
  onEvent(event: ServerEvent): void;
  onConnection(connection: Connection): void;
  onRefused(problem: Problem): void;
}

/**
 * Follows the server's events until stopped. A lost stream resumes after the last received
 * event. A refused key ends the reader.
 */
export class EventReader {
  private lastId: string | null = null;
  private isWhole = false;
  private attempt = 0;
  private stopped = new AbortController();
  private wake: () => void = () => {};

  constructor(
    private readonly client: Client,
    private readonly reading: Reading,
    private readonly random: () => number = Math.random,
  ) {}

  start(): void {
    void this.run();
  }

  stop(): void {
    this.stopped.abort();
    this.wake();
  }

  /** Reconnect now: the network or the tab is back. */
  hurry(): void {
    this.wake();
  }

  private async run(): Promise<void> {
    this.reading.onConnection({ is: "connecting" });
    while (!this.stopped.signal.aborted) {
      const why = await this.follow();
      if (this.stopped.signal.aborted || why === null) return;
      this.attempt += 1;
      const wait_ms = waitBefore(this.attempt, this.random());
      this.reading.onConnection({ is: "reconnecting", why, attempt: this.attempt, next_ms: wait_ms });
      await this.pause(wait_ms);
    }
  }

  /** Read one stream to its end. Returns why it ended; null if the key was refused. */
  private async follow(): Promise<string | null> {
    const watch = new AbortController();
    const signal = AbortSignal.any([watch.signal, this.stopped.signal]);
    let timer = setTimeout(() => watch.abort(), SILENCE_MS);
    try {
      const headers: Record<string, string> = { Accept: "text/event-stream" };
      if (this.lastId !== null) headers["Last-Event-ID"] = this.lastId;
      const response = await this.client.send(`${ADMIN}/events`, { headers, signal, timeout_ms: null });
      if (!response.ok || response.body === null) return await this.refusal(response);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = new EventParser();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return "the server ended the stream";
        clearTimeout(timer);
        timer = setTimeout(() => watch.abort(), SILENCE_MS);
        this.take(parser, value);
      }
    } catch (error) {
      return watch.signal.aborted ? `nothing came for ${SILENCE_MS / 1000} s` : wordsOf(error);
    } finally {
      clearTimeout(timer);
      watch.abort();
    }
  }

  private take(parser: EventParser, text: string): void {
    for (const event of parser.feed(text)) {
      this.attempt = 0;
      this.reading.onEvent({ type: event.type, data: JSON.parse(event.data) } as ServerEvent);
      if (event.type === "reset") this.lastId = null;
      if (event.type === "reset" || event.type === "ready") this.isWhole = event.type === "ready";
      // Recorded after the event was applied: an unreadable event is requested again. Not within a
      // snapshot: the server would not send its remaining events again.
      if (this.isWhole && event.id !== null) this.lastId = event.id;
    }
  }

  private async refusal(response: Response): Promise<string | null> {
    const problem = problemOf(response.status, await response.text());
    if (response.status !== 401 && response.status !== 403) return `${problem.title}: ${problem.message}`;
    this.reading.onConnection({ is: "refused", why: problem.message });
    this.reading.onRefused(problem);
    return null;
  }

  private async pause(wait_ms: number): Promise<void> {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, wait_ms);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.wake = () => {};
  }
}
