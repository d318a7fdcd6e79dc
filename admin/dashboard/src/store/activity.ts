import type { ErrorEvent, ColdStart, DecisionEvent, ReplicaRow } from "../api/types.ts";

/** A replica that has ended, in its last known state. */
export interface Departed {
  readonly replica: ReplicaRow;
  readonly at_s: number;
}

/** Events of one function, newest first. */
export interface Activity {
  readonly decisions: readonly DecisionEvent[];
  readonly errors: readonly ErrorEvent[];
  readonly coldStarts: readonly ColdStart[];
  readonly departed: readonly Departed[];
}

export const KEPT = 50;
/** Limit over all functions; of the least recently active one only the last error is kept. */
export const KEPT_IN_ALL = 400;
/** Functions of which only the last error is kept. */
const ERRORS_LEFT = 2_000;
export const DEPARTED_KEPT = 5;
export const QUIET: Activity = { decisions: [], errors: [], coldStarts: [], departed: [] };

/** Activity of many functions, bounded. Values are replaced, never mutated. */
export class Activities {
  private readonly byName = new Map<string, Activity>();
  private readonly left = new Map<string, Activity>();
  private kept = 0;

  get(name: string): Activity {
    return this.byName.get(name) ?? this.left.get(name) ?? QUIET;
  }

  decision(item: DecisionEvent): void {
    const { decisions, ...rest } = this.get(item.function);
    this.keep(item.function, { ...rest, decisions: newest(item, decisions) });
  }

  coldStart(item: ColdStart): void {
    const { coldStarts, ...rest } = this.get(item.name);
    this.keep(item.name, { ...rest, coldStarts: newest(item, coldStarts) });
  }

  /** Equal consecutive errors are one line with a count. */
  error(item: ErrorEvent): void {
    const { errors, ...rest } = this.get(item.function);
    const [last, ...before] = errors;
    const isSame = last && last.code === item.code && last.detail === item.detail && last.replica === item.replica;
    const merged = isSame ? [{ ...item, count: last.count + item.count }, ...before] : newest(item, errors);
    this.keep(item.function, { ...rest, errors: merged });
  }

  /** Keep an ended replica with its last event, which may arrive in the same moment. */
  departed(replica: ReplicaRow, at_s: number): void {
    const activity = this.get(replica.function);
    const departed = [{ replica, at_s }, ...activity.departed].slice(0, DEPARTED_KEPT);
    this.keep(replica.function, { ...activity, departed });
  }

  forget(name: string): void {
    this.drop(name);
    this.left.delete(name);
  }

  clear(): void {
    this.kept = 0;
    this.byName.clear();
    this.left.clear();
  }

  private drop(name: string): void {
    const found = this.byName.get(name);
    if (found && this.byName.delete(name)) this.kept -= sizeOf(found);
  }

  private keep(name: string, activity: Activity): void {
    // A map keeps the insertion order: reinserting makes this entry the youngest.
    this.forget(name);
    this.byName.set(name, activity);
    this.kept += sizeOf(activity);
    for (const [quiet, { errors }] of this.byName) {
      if (this.kept <= KEPT_IN_ALL) return;
      this.drop(quiet);
      if (errors[0]) this.leave(quiet, { ...QUIET, errors: errors.slice(0, 1) });
    }
  }

  private leave(name: string, activity: Activity): void {
    this.left.delete(name);
    this.left.set(name, activity);
    const oldest = this.left.keys().next();
    if (this.left.size > ERRORS_LEFT && !oldest.done) this.left.delete(oldest.value);
  }
}

function sizeOf({ decisions, errors, coldStarts, departed }: Activity): number {
  return decisions.length + errors.length + coldStarts.length + departed.length;
}

function newest<T>(item: T, items: readonly T[]): T[] {
  return [item, ...items.slice(0, KEPT - 1)];
}
