import { useSyncExternalStore } from "react";

/** One shared tick per second: a timer per row would wake the page a
 * thousand times a second. It pauses while the page is hidden. */
class Clock {
  private readonly listeners = new Set<() => void>();
  private timer: ReturnType<typeof setInterval> | undefined;
  private second = 0;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    this.timer ??= setInterval(() => this.tick(), 1000);
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size) return;
      clearInterval(this.timer);
      this.timer = undefined;
    };
  };

  readonly read = (): number => this.second;

  private tick(): void {
    if (document.hidden) return;
    this.second += 1;
    for (const listener of [...this.listeners]) listener();
  }
}

const clock = new Clock();

/** A number that grows every `seconds` while the page is visible and the component mounted; stays if `isOn` is false. */
export function useTurn(seconds: number, isOn: boolean): number {
  const read = () => (isOn ? Math.floor(clock.read() / seconds) : 0);
  return useSyncExternalStore(isOn ? clock.subscribe : still, read);
}

const still = () => () => {};

/** Render the component every second. */
export function useSecond(): number {
  return useSyncExternalStore(clock.subscribe, clock.read);
}
