/** Answers of GET /functions/{name} and its subresources, beside FunctionLine. */

import type { BuildLine, FunctionLine, Operation, Phase } from "./types.ts";

export interface TensorSpec {
  name: string;
  dtype: string;
  /** -1 is a dynamic dimension, null a shape that the model does not declare. */
  shape: number[] | null;
}

export interface Signature {
  kind: "tensors" | "json" | "bytes" | "http";
  inputs: TensorSpec[];
  outputs: TensorSpec[];
}

/** Settings of an input in function.toml, beside its tensor. */
export interface InputRule {
  kind: "tensor" | "image" | "audio" | "bytes" | "json";
  finite?: boolean;
  image?: { size: [number, number]; mode: string; layout: string } | null;
  audio?: { rate_hz: number; samples: number | null } | null;
  bytes?: { length: number | null; pad: number } | null;
}

/** Cost of one way to create a session. `cpu_ms` is keyed by rows. */
export interface SessionTimes {
  load_ms: number;
  first_ms: number;
  cpu_ms: Record<string, number>;
}

export interface Profile {
  device_kind: string;
  load_ms: number;
  memory_mib: number;
  /** Latency of one run, keyed by rows. */
  latency_ms: Record<string, number>;
  batchable: boolean;
  why_not: string;
  batch_max: number;
  profiled: boolean;
  note: string;
  prepared: { original: SessionTimes; quick: SessionTimes; fast: SessionTimes | null } | null;
  why_not_prepared: string;
  /** Of a server: a request whose right answer the trial has learnt. */
  golden?: Golden | null;
}

export interface Golden {
  sample: { request: { method: string; path: string }; usual_ms: number; rule: string };
}

/** One precision of the model, as the deploy's trial measured it. */
export interface Candidate {
  name: "original" | "fp16" | "int8" | "int8-dynamic";
  /** Why it does not serve; "" if it does. */
  why_not: string;
  /** Latency of one run, keyed by rows. */
  latency_ms?: Record<string, number>;
  memory_mib?: number;
  file_bytes?: number;
  cosine?: number;
  largest_difference?: number;
  same_label?: number;
  /** The column of the outputs that agrees least. */
  column?: WorstColumn;
  batchable?: boolean;
}

export interface WorstColumn {
  output: string;
  /** Its name in the output, such as "column 3"; "" if it is the only one. */
  part: string;
  /** Share of the column's spread; of a constant column, of its magnitude. */
  error: number;
  error_max: number;
  spread: number;
  bias: number;
  /** Null for a constant column. */
  gain: number | null;
}

export interface PrecisionReport {
  chosen: Candidate["name"];
  candidates: Candidate[];
  tolerance: number;
  calibrated: number;
  judged: number;
  source: "samples" | "synthetic";
}

export interface Revision {
  number: number;
  traffic: boolean;
  bundle: string;
  engine: string;
  /** Set only if function.toml asks for a compiled model. */
  compilation?: { engine: "tensorrt" | "auto" } | null;
  model: string;
  handler: string;
  size: number;
  created_s: number;
  signature: Signature;
  profile: Profile | null;
  batch_max: number;
  /** Whether requests are batched, or the reason why not. */
  batching: string;
  /** Of a server function: why it has no golden sample, "" if it has one. */
  why_not_golden?: string;
}

export interface Quantiles {
  p50_ms: number;
  p90_ms: number;
}

/** Cold starts of one kind: device kind, with or without a standby. */
export interface ColdStartRow {
  device_kind: string;
  standby: boolean;
  samples: number;
  total: Quantiles;
  phases: Partial<Record<Phase, Quantiles>>;
}

export interface Limits {
  timeout_s: number;
  wait_s: number;
  queue: number;
  body_mib: number;
  retry: string;
}

/** Request that a deploy's trial sends to a server. `status` 0 accepts every status below 400. */
export interface SampleRequest {
  path: string;
  method: string;
  headers: Record<string, string>;
  body: string;
  status: number;
}

/** Image of a server; `id` and `digest` are the engine's, from the deploy. */
export interface ServerImage {
  reference: string;
  id: string;
  digest: string;
}

export interface Mount {
  name: string;
  source: string;
  target: string;
  is_read_only: boolean;
}

/** The [server] table of a server function's revision. */
export interface ServerSettings {
  /** With an image, arguments that replace the image's. */
  command: string[];
  image?: ServerImage | null;
  /** Names only: values may be secrets. */
  env: string[];
  port: number;
  /** "" probes "/". */
  ready: string;
  network: "none" | "egress";
  start_s: number;
  stop_grace_s: number;
  samples: SampleRequest[];
  paths: { wake: string[]; free: string[]; deny: string[] };
  /** Variable to the secret's name. */
  secrets?: Record<string, string>;
  mounts?: Mount[];
  /** Names with "_" of header fields that it gets. */
  fields?: string[];
}

/** Limits of a server function's exchanges. */
export interface ExchangeLimits {
  concurrency: number;
  first_byte_s: number;
  stall_s: number;
  max_s: number;
  drain_s: number;
  websockets: "count" | "ignore";
}

/** The compiled model beside the ordinary one, for one output. */
export interface OutputParity {
  output: string;
  largest_difference: number;
  relative_difference: number;
  cosine: number;
}

/** Shapes of one input that a model is compiled for. */
export interface ShapeRange {
  input: string;
  smallest: number[];
  usual: number[];
  largest: number[];
}

export interface BuildDetail extends BuildLine {
  attempts: number;
  ranges: ShapeRange[];
  elapsed_s: number | null;
  compiler: string | null;
  device_type: string | null;
  /** Host and model of the devices that it is for; the model of a CPU is empty. */
  host: string;
  device_model: string;
  outside: "ordinary" | "refuse" | null;
  form: "context" | "cache" | null;
  parity: OutputParity[];
  samples: number;
  /** Milliseconds per run, by rows. */
  ordinary_ms: Record<string, number>;
  compiled_ms: Record<string, number>;
}

export interface FunctionDetail extends FunctionLine {
  build?: BuildDetail | null;
  /** One for each type of device. */
  builds?: BuildDetail[];
  limits: Limits;
  /** Further names of its model at /v1. */
  aliases?: string[];
  signature: Signature;
  content_types: string[];
  inputs: Record<string, InputRule>;
  output: { tensor: string; labels: string[]; top_k: number };
  batching: { mode: string; max_size: number; wait_ms: number };
  device: { kind: string; memory_mib: number; share: number; count: number };
  /** The source of the body that GET .../sample answers. */
  sample: "manifest" | "zeros";
  /** Set only if function.toml wants another precision. */
  precision?: PrecisionReport | null;
  revisions: Revision[];
  previous: number | null;
  cold_starts: ColdStartRow[];
  example: string;
  /** Signature of `predict`, set only for Python functions, as are the next three. */
  predict?: string;
  form?: "def" | "async def" | "generator" | "async generator";
  /** JSON Schemas of `inputs` and `output` with their `$defs`; null without. */
  schema?: Record<string, unknown> | null;
  /** Why there is no schema. */
  no_schema?: string;
  /** Set only for server functions. */
  server?: ServerSettings | null;
  exchange?: ExchangeLimits | null;
}

/** One open exchange of a server function. */
export interface Connected {
  /** Id of the key; "" where none is needed. */
  key: string;
  /** The key's label. */
  note: string;
  kind: "websocket" | "events" | "request";
  since_s: number;
  /** Without its query. */
  path: string;
  /** Whether it keeps the function awake. */
  counts: boolean;
}

export interface Why {
  /** A state of a function, or "not_deployed": its first deploy runs, has failed or was cancelled. */
  state: string;
  reason: string;
  /** The operation that runs, or that first deploy. */
  operation?: Operation | null;
  blocked: string;
  decisions: { at_s: number; text: string }[];
  cold_starts: {
    name: string;
    number: number;
    replica: string;
    device_kind: string;
    devices?: string[];
    at_s: number;
    total_ms: number;
    phases: Partial<Record<Phase, number>>;
    outcome: string;
  }[];
  /** Set only for server functions; the longest open ones, at most 50. */
  connected?: Connected[];
  /** The numbers of all open exchanges. */
  connections?: { counting: number; free: number };
  /** Whether they keep it awake, in words; "" without any. */
  awake?: string;
}
