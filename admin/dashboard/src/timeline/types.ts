/** Answers of the timeline and advice routes. */

/** Device-seconds of the bucket that begins at `at_s`. */
export interface Use {
  at_s: number;
  waking_s: number;
  idle_s: number;
  busy_s: number;
}

export interface Totals {
  waking_s: number;
  idle_s: number;
  busy_s: number;
}

export interface StateBlock {
  from_s: number;
  to_s: number;
  state: string;
  reason: string;
  revision: string | number;
}

interface Frame {
  from_s: number;
  to_s: number;
  bucket_s: number;
}

/** GET /functions/{name}/timeline */
export interface FunctionTimeline extends Frame {
  states: StateBlock[];
  use: (Use & { device: string })[];
  arrivals: { at_s: number; count: number }[];
  totals: Totals & { cold_starts: number; requests: number };
}

export interface FunctionUse extends Totals {
  name: string;
  requests: number;
}

export interface DeviceUse extends Totals {
  id: string;
  use: Use[];
}

/** GET /timeline */
export interface Timeline extends Frame {
  functions: FunctionUse[];
  devices: DeviceUse[];
}

export interface AdviceRow {
  idle_s: number;
  cold_starts: number;
  waited_s: number;
  held: number;
  device_s: number;
  idle_device_s: number;
  is_current: boolean;
}

/** GET /functions/{name}/advice */
export interface Advice {
  from_s: number;
  to_s: number;
  requests: number;
  idle_s: number;
  basis: { cold_start_ms: number; run_ms: number; cold_starts_seen: number };
  rows: AdviceRow[];
  notes: string[];
}
