/** One event of a text/event-stream. `id` is null if it has none. */
export interface StreamEvent {
  type: string;
  id: string | null;
  data: string;
}

/** Maximum characters of one event; fngate sends no larger ones. */
export const EVENT_MAX = 4_000_000;

/**
 * Incremental parser of text/event-stream (HTML standard, section 9.2.6), as far as fngate uses it:
 * `retry` and comments are ignored. Pure: text in, events out.
 */
export class EventParser {
  private rest = "";
  private data: string[] = [];
  private type = "";
  private id: string | null = null;
  private size = 0;

  /** The events that end within `text`. Throws RangeError for an event longer than EVENT_MAX. */
  feed(text: string): StreamEvent[] {
    const found: StreamEvent[] = [];
    this.rest += text;
    let start = 0;
    for (;;) {
      const end = lineEnd(this.rest, start);
      if (end === null) break;
      this.line(this.rest.slice(start, end.at), found);
      start = end.next;
    }
    this.rest = this.rest.slice(start);
    if (this.rest.length + this.size > EVENT_MAX) throw new RangeError(`an event of more than ${EVENT_MAX} characters`);
    return found;
  }

  private line(line: string, found: StreamEvent[]): void {
    if (line === "") {
      if (this.data.length) found.push({ type: this.type || "message", id: this.id, data: this.data.join("\n") });
      this.data = [];
      this.type = "";
      this.id = null;
      this.size = 0;
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    this.size += value.length;
    if (field === "data") this.data.push(value);
    else if (field === "event") this.type = value;
    else if (field === "id" && !value.includes("\0")) this.id = value;
  }
}

/** End of the line that begins at `start`, and the start of the next line; null if the end has not arrived. */
function lineEnd(text: string, start: number): { at: number; next: number } | null {
  const feed = text.indexOf("\n", start);
  const stretch = feed < 0 ? text : text.slice(start, feed);
  const ret = feed < 0 ? text.indexOf("\r", start) : stretch.indexOf("\r") < 0 ? -1 : start + stretch.indexOf("\r");
  if (ret >= 0) {
    // A carriage return at the end: its line feed may be in the next piece.
    if (ret === text.length - 1) return null;
    return { at: ret, next: text[ret + 1] === "\n" ? ret + 2 : ret + 1 };
  }
  return feed < 0 ? null : { at: feed, next: feed + 1 };
}
