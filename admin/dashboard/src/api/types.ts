/** Types of the admin API's answers and events. Times end in _s (Unix seconds) or _ms. */

export const STATES = ["cold", "waking", "warm", "parked", "draining", "failing"] as const;
export type FunctionState = (typeof STATES)[number];

/** The phases of a cold start or a wake, in their order. */
export const PHASES = ["place", "evict", "start", "import", "bind", "read", "load", "wake", "verify", "first_run"] as const;
export type Phase = (typeof PHASES)[number];
export type Phases = Partial<Record<Phase, number>>;

/** State of the build of a compiled model. */
export interface BuildLine {
  state: "unavailable" | "waiting" | "building" | "given_up" | "failed" | "done";
  reason: string;
  /** Of a running build. */
  began_s: number | null;
  /** How long it takes by earlier builds. */
  estimate_s: number | null;
}

/** A replica that sleeps. */
export interface Parked {
  id: string;
  devices: string[];
  since_s: number;
  /** When it is stopped; null while its host cannot be reached. */
  ends_s: number | null;
  /** What it keeps of each of its devices. */
  residue_mib: number;
  host_mib: number;
  why: string;
}

/** The parks of a function. */
export interface Park {
  /** Why its replicas are stopped and not parked, "" if they are parked. */
  off: string;
  /** Until a parked replica serves; null if its trial has not shown it. */
  wake_ms: number | null;
  parked: Parked[];
}

export interface FunctionLine {
  name: string;
  /** "digits@3" */
  revision: string;
  state: FunctionState;
  reason: string;
  ready: number;
  wanted: number;
  held: number;
  in_flight: number;
  min: number;
  max: number;
  idle_s: number;
  labels: Record<string, string>;
  /** "server" for a server function. */
  engine?: string;
  since_s: number;
  cold_start_ms: number | null;
  ready_in_ms: number | null;
  created_s: number;
  /** Requests answered per second over the last 10 s. */
  rate: number;
  p50_ms: number | null;
  p95_ms: number | null;
  /** Of a server function: from sending a request to the first byte of its answer, over the last minute. */
  first_byte_p50_ms?: number | null;
  first_byte_p95_ms?: number | null;
  /** When its idle replica stops; null if it stays or is busy. */
  sleeps_at_s: number | null;
  /** Set for functions that ask for a compiled model. */
  build?: BuildLine | null;
  /** Why a ready server does not answer, "" while all do. */
  trouble?: string;
  /** The worst verdict of its replicas' golden samples. */
  golden?: string;
  /** Null for a function without the table [park]. */
  park?: Park | null;
  /** While waking. */
  phase: Phase | null;
  /** What the readiness probes of a starting server meet, and for how long. */
  awaited?: string | null;
  devices: string[];
}

export type ReplicaState =
  | "starting"
  | "standby"
  | "loading"
  | "ready"
  | "draining"
  | "parking"
  | "proving"
  | "parked"
  | "unparking"
  | "verifying"
  | "releasing";

/** States of a replica that is about to serve. */
export const COMING: readonly ReplicaState[] = ["starting", "loading", "unparking", "verifying"];

export interface Replica {
  id: string;
  /** "default/digits@3" */
  pool: string;
  function: string;
  revision: string;
  /** The first of `devices`. */
  device: string;
  devices: string[];
  host: string;
  role: "serve" | "trial" | "build" | "standby";
  state: ReplicaState;
  since_s: number;
  adopted: boolean;
  limit: number;
  /** The session that it serves with, such as "compiled", "" if unknown. */
  session: string;
  memory_mib: number;
  phases: Phases;
  why: string;
  /** Why its server does not answer, "" while it does. */
  trouble?: string;
  /** While it is parked: what it keeps of each of its devices, and when it is stopped. */
  residue_mib?: number | null;
  ends_s?: number | null;
  /** Host memory that is charged to it for its park. */
  host_mib?: number;
}

export const HOST_STATES = ["joining", "up", "unreachable", "draining", "gone"] as const;
export type HostState = (typeof HOST_STATES)[number];

/** The machine that the server runs on. */
export const LOCAL = "local";

/** A machine that runs replicas. null means unknown. */
export interface Host {
  name: string;
  /** [USER@]HOST[:PORT]; "" for the server's own machine. */
  address: string;
  state: HostState;
  /** Why it is not up, or which problem it has although it is up. */
  reason: string;
  since_s: number;
  /** Those of the operator, and `host` with its name. */
  labels: Record<string, string>;
  driver: string;
  engine_version: string;
  rtt_ms: number | null;
  /** Why there are no reports of its GPUs and disk; "" if there are. */
  agent: string;
  cpu_slots: number;
  gpus: number;
  replicas: number;
  disk_free_mib: number | null;
  cached_files: number;
  cached_mib: number;
  images: number;
  /** Its clock minus the server's. */
  clock_offset_s: number | null;
  /** The transfer in progress; "" for none. */
  transfer: string;
}

/** Stored settings of a host, for keys with the scope admin. */
export interface HostSettings {
  host_key: string;
  identity: string;
  engine: string;
  files_mib: number;
}

export interface HostDetail extends Host {
  settings: HostSettings | null;
}

/** Result of one check of a host; `todo` is the remedy. */
export interface HostCheck {
  level: "ok" | "fail";
  name: string;
  found: string;
  todo: string;
}

export type DeviceState = "free" | "taken" | "quarantined" | "cordoned";

export interface Device {
  id: string;
  host: string;
  kind: string;
  name: string | null;
  index: string | null;
  capability: string | null;
  driver: string | null;
  bank: string | null;
  /** Memory that replicas may use. */
  memory_mib: number;
  /** Memory charged for replicas. */
  charged_mib: number;
  /** Memory in use as the driver reports it, by any process. */
  used_mib: number | null;
  total_mib: number | null;
  foreign_mib: number | null;
  state: DeviceState;
  reason: string;
  replicas: string[];
  /** Replicas that sleep and keep `residue_mib` of it; the device is free for others. */
  parked?: string[];
  residue_mib?: number;
  /** Fraction of the last seconds with a model running, 0..1; null if unknown. */
  busy: number | null;
}

export interface Decision {
  function: string;
  revision: string;
  at_s: number;
  text: string;
}

export interface ColdStart {
  name: string;
  number: number;
  replica: string;
  device_kind: string;
  devices?: string[];
  host?: string;
  at_s: number;
  total_ms: number;
  phases: Phases;
  outcome: string;
}

/** Requests answered with an error: `count` equal ones since the previous event. */
export interface CallError {
  function: string;
  revision: string | null;
  replica: string | null;
  code: string;
  detail: string;
  request_id: string | null;
  at_s: number;
  count: number;
}

/** A deploy or a rollback. */
export interface Operation {
  id: string;
  name: string;
  kind: string;
  state: "running" | "done" | "failed" | "cancelled";
  /** The present step, with what it waits for behind its first word; the last one once it has ended. */
  phase: string;
  result?: object | null;
  /** A problem document; empty unless it failed. */
  error?: Record<string, unknown> | null;
  created_s: number;
  /** 0 until it has ended. */
  ended_s: number;
}

export interface Readyz {
  status: string;
  reasons: string[];
}

export interface Beat {
  at_s: number;
  held: number;
  in_flight: number;
  rate: number;
  readyz: Readyz;
}

export interface ServerFacts {
  version: string;
  driver: string;
  started_s: number;
  workers: number;
}

/** GET /admin/v1/session */
export interface Session {
  scopes: string[];
  version: string;
  driver: string;
  workers: number;
}

/** The events of /admin/v1/events by name. */
export interface ServerEvents {
  reset: { reason: string; server: ServerFacts };
  functions: { items: FunctionLine[] };
  replicas: { items: Replica[] };
  devices: { items: Device[] };
  hosts: { items: Host[] };
  gone: { functions?: string[]; replicas?: string[]; devices?: string[]; hosts?: string[] };
  decision: Decision;
  cold_start: ColdStart;
  operation: Operation;
  error: CallError;
  ready: Record<string, never>;
  beat: Beat;
}

export type ServerEvent = { [T in keyof ServerEvents]: { type: T; data: ServerEvents[T] } }[keyof ServerEvents];

/** Answers of POST .../sleep, PATCH and similar routes, beside the function. */
export interface Scaling {
  min: number;
  max: number;
  idle_s: number;
}
