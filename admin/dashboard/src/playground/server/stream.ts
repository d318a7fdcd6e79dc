/** An answer that arrives piece by piece, kept within limits for display. */

import { EventParser } from "../../events/sse.ts";
import { READ_MAX, SHOWN_MAX, shownOf } from "../answer.ts";

/** An event of a text/event-stream. `at_ms`: since the request was sent. */
export interface Arrived {
  n: number;
  at_ms: number;
  type: string;
  data: string;
}

export const EVENTS_MAX = 500;
/** Maximum characters of an event's data that are shown. */
export const DATA_MAX = 4096;

/** Collector of an answer's body. Its fields may be read at any time. */
export class Collected {
  /** Bytes received. */
  size = 0;
  firstMs: number | null = null;
  /** The newest events, oldest first; `eventCount` counts all. */
  events: Arrived[] = [];
  eventCount = 0;
  private readonly kind: "events" | "text" | "whole";
  private readonly parser = new EventParser();
  private readonly decoder = new TextDecoder();
  private tail = "";
  private pieces: Uint8Array[] = [];
  private kept = 0;

  constructor(private readonly type: string) {
    const media = (type.split(";")[0] ?? "").trim().toLowerCase();
    const isLines = /^(text\/|application\/(x-ndjson|jsonl|json-seq|javascript)$)/.test(media);
    this.kind = media === "text/event-stream" ? "events" : isLines ? "text" : "whole";
  }

  get isEvents(): boolean {
    return this.kind === "events";
  }

  /** Add a piece. Throws RangeError for an event that is too long. */
  feed(piece: Uint8Array, at_ms: number): void {
    this.firstMs ??= at_ms;
    this.size += piece.length;
    if (this.kind === "whole") return this.keep(piece);
    const text = this.decoder.decode(piece, { stream: true });
    if (this.kind === "events") this.arrived(text, at_ms);
    else this.tail = (this.tail + text).slice(-SHOWN_MAX);
  }

  /** The text that has arrived so far; "" for what is shown only as a whole. */
  get soFar(): string {
    return this.tail;
  }

  /** The whole body, if it is a picture or a sound that is small enough to be shown; else null. */
  media(): Blob | null {
    const isMedia = /^(image|audio)\//.test(this.type) && this.size === this.kept && this.size > 0;
    return isMedia ? new Blob(this.pieces as BlobPart[], { type: this.type }) : null;
  }

  /** The whole body as text; `cut`: bytes that are not shown. Its cost grows with the body. */
  whole(): { text: string; cut: number } {
    if (this.kind === "events") return { text: "", cut: 0 };
    if (this.kind === "text") {
      const shown = new TextEncoder().encode(this.tail).length;
      return { text: this.tail, cut: this.tail.length < SHOWN_MAX ? 0 : Math.max(0, this.size - shown) };
    }
    const whole = new Uint8Array(this.kept);
    let at = 0;
    for (const piece of this.pieces) {
      whole.set(piece, at);
      at += piece.length;
    }
    const { text, cut } = shownOf(this.type, whole);
    return { text, cut: cut + this.size - this.kept };
  }

  private keep(piece: Uint8Array): void {
    const part = piece.subarray(0, Math.max(0, READ_MAX - this.kept));
    if (part.length) this.pieces.push(part);
    this.kept += part.length;
  }

  private arrived(text: string, at_ms: number): void {
    for (const { type, data } of this.parser.feed(text)) {
      this.eventCount += 1;
      const shown = data.length > DATA_MAX ? `${data.slice(0, DATA_MAX)}…` : data;
      this.events.push({ n: this.eventCount, at_ms, type, data: shown });
    }
    if (this.events.length > EVENTS_MAX) this.events = this.events.slice(-EVENTS_MAX);
  }
}
