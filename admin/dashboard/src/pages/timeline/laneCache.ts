import { summed } from "../../timeline/lanes.ts";
import type { FunctionTimeline, BucketUse } from "../../api/types.ts";

/** A function's lane, or null while it is being fetched. */
export type Drawn = readonly BucketUse[] | null;

const AT_ONCE = 3;
const KEPT = 300;

/**
 * Lanes of functions, fetched when they become visible, a few at once, latest request first: a reader who
 * scrolls past two hundred functions does not wait for those that are no longer visible.
 */
export class LaneCache {
  private readonly lanes = new Map<string, Drawn>();
  private waiting: string[] = [];
  private out = 0;
  private readonly stopped = new AbortController();

  constructor(
    private readonly fetch: (name: string, signal: AbortSignal) => Promise<FunctionTimeline>,
    private readonly onChange: () => void,
  ) {}

  /** The lane of `name`; starts a fetch if there was none. */
  get(name: string): Drawn {
    const known = this.lanes.get(name);
    return known === undefined ? null : known;
  }

  /** Set the visible functions; pending fetches of others are dropped. */
  want(names: readonly string[]): void {
    this.waiting = names.filter((name) => !this.lanes.has(name));
    this.next();
  }

  stop(): void {
    this.waiting = [];
    this.stopped.abort();
  }

  private next(): void {
    while (this.out < AT_ONCE) {
      const name = this.waiting.shift();
      if (name === undefined) return;
      this.lanes.set(name, null);
      this.out += 1;
      void this.take(name);
    }
  }

  private async take(name: string): Promise<void> {
    try {
      const { use } = await this.fetch(name, this.stopped.signal);
      this.keep(name, summed(use));
    } catch {
      // An empty lane; its row shows the totals, which came with the list.
      this.keep(name, []);
    }
    this.out -= 1;
    if (this.stopped.signal.aborted) return;
    this.onChange();
    this.next();
  }

  private keep(name: string, use: readonly BucketUse[]): void {
    this.lanes.delete(name);
    this.lanes.set(name, use);
    const oldest = this.lanes.keys().next();
    if (this.lanes.size > KEPT && !oldest.done) this.lanes.delete(oldest.value);
  }
}
