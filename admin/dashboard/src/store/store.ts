import type {
  BeatEvent,
  DeviceRow,
  FunctionRow,
  HostRow,
  OperationRow,
  ReplicaRow,
  ServerEvent,
  ServerFacts,
} from "../api/types.ts";
import type { Connection } from "../events/reader.ts";
import { Activities } from "./activity.ts";
import { Ring } from "./ring.ts";
import { Topics, type Schedule } from "./topics.ts";

export const SPARK = 60;
const OPERATIONS_KEPT = 50;

/**
 * Topics: one per row for `fn:NAME`, `replica:ID`, `device:ID`, `host:NAME`, `activity:NAME`; `names` when a
 * function is added or removed; `order` once a second, when states and numbers may change the order.
 */
export const topic = {
  fn: (name: string) => `fn:${name}`,
  replica: (id: string) => `replica:${id}`,
  device: (id: string) => `device:${id}`,
  host: (name: string) => `host:${name}`,
  activity: (name: string) => `activity:${name}`,
  names: "names",
  order: "order",
  replicas: "replicas",
  devices: "devices",
  hosts: "hosts",
  beat: "beat",
  connection: "connection",
  operations: "operations",
} as const;

/** A snapshot that is still arriving. */
interface Coming {
  server: ServerFacts;
  functions: Map<string, FunctionRow>;
  replicas: Map<string, ReplicaRow>;
  devices: Map<string, DeviceRow>;
  hosts: Map<string, HostRow>;
}

/**
 * State of the server as the page knows it, outside of React: events come in, subscribers are notified once
 * per frame. Values are replaced, never mutated, so readers may compare them by identity. Bounded
 * by the number of functions on the server; rings, activity and operations have their own limits.
 *
 * An arriving snapshot replaces the state only when complete. Until then the old state stays visible,
 * marked as stale: a list that empties and refills loses the reader's place.
 */
export class Store {
  readonly functions = new Map<string, FunctionRow>();
  readonly replicas = new Map<string, ReplicaRow>();
  readonly devices = new Map<string, DeviceRow>();
  readonly hosts = new Map<string, HostRow>();
  readonly activities = new Activities();
  readonly operations = new Map<string, OperationRow>();
  readonly topics: Topics;
  server: ServerFacts | null = null;
  beat: BeatEvent | null = null;
  connection: Connection = { is: "connecting" };
  /** Whether a complete snapshot has arrived; rows may be missing before. */
  isWhole = false;
  /** Version of the set of functions. */
  namesVersion = 0;
  /** Counter of seconds. */
  orderVersion = 0;
  replicasVersion = 0;
  devicesVersion = 0;
  /** Version of the set of hosts. */
  hostsVersion = 0;
  operationsVersion = 0;
  /** Offset of the server's clock from this machine's, ms; positive if the server is ahead. */
  skew_ms = 0;
  private coming: Coming | null = null;
  private beatAt_ms = 0;
  private readonly rings = new Map<string, Ring>();
  private readonly phaseSince = new Map<string, { key: string; at_ms: number }>();

  constructor(
    private readonly now_ms: () => number = Date.now,
    schedule?: Schedule,
  ) {
    this.topics = new Topics(schedule);
  }

  /** The rates of the last SPARK seconds; null for a function without calls. */
  ring(name: string): Ring | null {
    return this.rings.get(name) ?? null;
  }

  /** The current time by the server's clock, Unix s. */
  serverNow_s(): number {
    return (this.now_ms() + this.skew_ms) / 1000;
  }

  /** Seconds since the server's last event; null before the first. */
  silence_s(): number | null {
    return this.beatAt_ms ? (this.now_ms() - this.beatAt_ms) / 1000 : null;
  }

  /** When the line's current ready_in_ms arrived, Unix ms of this machine. */
  heardAt_ms(name: string): number {
    return this.phaseSince.get(name)?.at_ms ?? this.now_ms();
  }

  setConnection(connection: Connection): void {
    this.connection = connection;
    this.topics.touch(topic.connection);
  }

  apply(event: ServerEvent): void {
    if (this.coming && collect(this.coming, event)) return;
    switch (event.type) {
      case "reset":
        this.coming = {
          server: event.data.server,
          functions: new Map(),
          replicas: new Map(),
          devices: new Map(),
          hosts: new Map(),
        };
        return;
      case "functions":
        for (const line of event.data.items) this.putFunction(line);
        return;
      case "replicas":
        for (const item of event.data.items) this.putReplica(item);
        return;
      case "devices":
        for (const item of event.data.items) this.putDevice(item);
        return;
      case "hosts":
        for (const item of event.data.items) this.putHost(item);
        return;
      case "gone":
        for (const name of event.data.functions) this.dropFunction(name);
        for (const id of event.data.replicas) this.dropReplica(id);
        for (const id of event.data.devices ?? []) this.dropDevice(id);
        for (const name of event.data.hosts ?? []) this.dropHost(name);
        return;
      case "decision":
        this.activities.decision(event.data);
        return this.topics.touch(topic.activity(event.data.function));
      case "cold_start":
        this.activities.coldStart(event.data);
        return this.topics.touch(topic.activity(event.data.name));
      case "error":
        this.activities.error(event.data);
        return this.topics.touch(topic.activity(event.data.function));
      case "operation":
        return this.putOperation(event.data);
      case "ready":
        if (this.coming) this.take(this.coming);
        this.isWhole = true;
        this.bumpNames();
        this.setConnection({ is: "live" });
        return;
      case "beat":
        return this.putBeat(event.data);
      default:
        // A newer server may send unknown event types.
        return;
    }
  }

  /** Replace the state by a complete snapshot. */
  private take(coming: Coming): void {
    this.coming = null;
    this.server = coming.server;
    this.operations.clear();
    this.operationsVersion += 1;
    this.rings.clear();
    this.phaseSince.clear();
    for (const name of [...this.functions.keys()]) if (!coming.functions.has(name)) this.dropFunction(name);
    for (const id of [...this.replicas.keys()]) if (!coming.replicas.has(id)) this.dropReplica(id);
    for (const id of [...this.devices.keys()]) if (!coming.devices.has(id)) this.dropDevice(id);
    for (const name of [...this.hosts.keys()]) if (!coming.hosts.has(name)) this.dropHost(name);
    // This includes replicas whose end was never reported.
    this.activities.clear();
    for (const line of coming.functions.values()) this.putFunction(line);
    for (const replica of coming.replicas.values()) this.putReplica(replica);
    for (const device of coming.devices.values()) this.putDevice(device);
    for (const host of coming.hosts.values()) this.putHost(host);
    this.topics.touchAll();
  }

  private putFunction(line: FunctionRow): void {
    const before = this.functions.get(line.name);
    this.functions.set(line.name, line);
    const key = `${line.state} ${line.phase} ${line.ready_in_ms}`;
    if (line.state !== "waking") this.phaseSince.delete(line.name);
    else if (this.phaseSince.get(line.name)?.key !== key) this.phaseSince.set(line.name, { key, at_ms: this.now_ms() });
    if (!before) this.bumpNames();
    this.topics.touch(topic.fn(line.name));
  }

  private dropFunction(name: string): void {
    if (!this.functions.delete(name)) return;
    this.rings.delete(name);
    this.phaseSince.delete(name);
    this.activities.forget(name);
    this.topics.touch(topic.fn(name));
    this.topics.touch(topic.activity(name));
    this.bumpNames();
  }

  private putReplica(replica: ReplicaRow): void {
    this.replicas.set(replica.id, replica);
    this.replicasVersion += 1;
    this.topics.touch(topic.replica(replica.id));
    this.topics.touch(topic.replicas);
  }

  private dropReplica(id: string): void {
    const last = this.replicas.get(id);
    if (!last) return;
    this.replicas.delete(id);
    if (this.functions.has(last.function)) {
      this.activities.departed(last, this.serverNow_s());
      this.topics.touch(topic.activity(last.function));
    }
    this.replicasVersion += 1;
    this.topics.touch(topic.replica(id));
    this.topics.touch(topic.replicas);
  }

  private putDevice(device: DeviceRow): void {
    if (!this.devices.has(device.id)) {
      this.devicesVersion += 1;
      this.topics.touch(topic.devices);
    }
    this.devices.set(device.id, device);
    this.topics.touch(topic.device(device.id));
  }

  private dropDevice(id: string): void {
    if (!this.devices.delete(id)) return;
    this.devicesVersion += 1;
    this.topics.touch(topic.device(id));
    this.topics.touch(topic.devices);
  }

  private putHost(host: HostRow): void {
    if (!this.hosts.has(host.name)) {
      this.hostsVersion += 1;
      this.topics.touch(topic.hosts);
    }
    this.hosts.set(host.name, host);
    this.topics.touch(topic.host(host.name));
  }

  private dropHost(name: string): void {
    if (!this.hosts.delete(name)) return;
    this.hostsVersion += 1;
    this.topics.touch(topic.host(name));
    this.topics.touch(topic.hosts);
  }

  private putOperation(operation: OperationRow): void {
    this.operations.delete(operation.id);
    this.operations.set(operation.id, operation);
    const oldest = this.operations.keys().next();
    if (this.operations.size > OPERATIONS_KEPT && !oldest.done) this.operations.delete(oldest.value);
    this.operationsVersion += 1;
    this.topics.touch(topic.operations);
  }

  private putBeat(beat: BeatEvent): void {
    this.beat = beat;
    this.beatAt_ms = this.now_ms();
    this.skew_ms = beat.at_s * 1000 - this.beatAt_ms;
    for (const [name, line] of this.functions) {
      let ring = this.rings.get(name);
      if (!ring && line.rate > 0) this.rings.set(name, (ring = new Ring(SPARK)));
      if (!ring) continue;
      ring.push(line.rate);
      if (ring.isFlat) this.rings.delete(name);
    }
    this.orderVersion += 1;
    this.topics.touch(topic.order);
    this.topics.touch(topic.beat);
    // A resumed stream has no snapshot and so no `ready`: the first beat shows that it is live.
    if (this.connection.is !== "live" && this.isWhole && !this.coming) this.setConnection({ is: "live" });
  }

  private bumpNames(): void {
    this.namesVersion += 1;
    this.topics.touch(topic.names);
  }
}

/** Add an event to the arriving snapshot. Returns whether it belongs to one. */
function collect(coming: Coming, event: ServerEvent): boolean {
  switch (event.type) {
    case "functions":
      for (const line of event.data.items) coming.functions.set(line.name, line);
      return true;
    case "replicas":
      for (const replica of event.data.items) coming.replicas.set(replica.id, replica);
      return true;
    case "devices":
      for (const device of event.data.items) coming.devices.set(device.id, device);
      return true;
    case "hosts":
      for (const host of event.data.items) coming.hosts.set(host.name, host);
      return true;
    case "gone":
      for (const name of event.data.functions) coming.functions.delete(name);
      for (const id of event.data.replicas) coming.replicas.delete(id);
      for (const id of event.data.devices ?? []) coming.devices.delete(id);
      for (const name of event.data.hosts ?? []) coming.hosts.delete(name);
      return true;
    default:
      return false;
  }
}
