/** Schedules notifications once per animation frame. */
export type Schedule = (flush: () => void) => void;

export const perFrame: Schedule = (flush) => {
  // A hidden tab has no frames: changed topics wait in the set.
  requestAnimationFrame(flush);
};

/**
 * Subscriptions by topic. Changes between two frames cause one notification; subscribers get only
 * their own topic, so that one changed row renders one row.
 */
export class Topics {
  private readonly listeners = new Map<string, Set<() => void>>();
  private readonly changed = new Set<string>();
  private isDue = false;

  constructor(private readonly schedule: Schedule = perFrame) {}

  subscribe(topic: string, listener: () => void): () => void {
    let group = this.listeners.get(topic);
    if (!group) this.listeners.set(topic, (group = new Set()));
    group.add(listener);
    return () => {
      group.delete(listener);
      if (!group.size && this.listeners.get(topic) === group) this.listeners.delete(topic);
    };
  }

  touch(topic: string): void {
    if (!this.listeners.has(topic)) return;
    this.changed.add(topic);
    if (this.isDue) return;
    this.isDue = true;
    this.schedule(() => this.flush());
  }

  touchAll(): void {
    for (const topic of this.listeners.keys()) this.touch(topic);
  }

  private flush(): void {
    this.isDue = false;
    const topics = [...this.changed];
    this.changed.clear();
    for (const topic of topics) for (const listener of [...(this.listeners.get(topic) ?? [])]) listener();
  }
}
