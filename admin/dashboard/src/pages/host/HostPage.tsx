import type { ReactNode } from "react";
import { useFetched } from "../../api/fetched.ts";
import {
  LOCAL,
  definitionOf,
  type HostDetail,
  type HostRow,
  type KubernetesHostSettings,
  type SshHostSettings,
} from "../../api/types.ts";
import { StateText } from "../../design/State.tsx";
import { mebibytes, millis, plural, span } from "../../design/format.ts";
import { useHost, useIsAdmin, useSite, useTopic } from "../../store/hooks.ts";
import { useSecond } from "../../store/clock.ts";
import { topic } from "../../store/store.ts";
import { DeviceList, useGroups } from "../overview/Devices.tsx";
import { agentOf, ownLabels } from "../overview/devices.ts";
import { ChecksPanel } from "./ChecksPanel.tsx";
import "./host.css";

/** One host: its state, what it has, its devices, and its checks. */
export function HostPage({ name }: { name: string }) {
  const host = useHost(name);
  const isWhole = useTopic(topic.connection, (store) => store.isWhole);
  const isAdmin = useIsAdmin();
  const ids = useGroups().find((group) => group.host === name)?.ids ?? [];
  if (!host) {
    return (
      <div className="page">
        <h1>{name}</h1>
        <p className="muted">{isWhole ? "There is no such host." : "Waiting for the server's state."}</p>
        <p>
          <a href="#/">To the overview</a>
        </p>
      </div>
    );
  }
  return (
    <div className="page live host-page">
      <HostHeader host={host} />
      <section className="panel" aria-labelledby="host-devices-title">
        <div className="panel-head">
          <h2 id="host-devices-title">Devices</h2>
          <span className="muted">{plural(ids.length, "device")}</span>
        </div>
        {ids.length ? (
          <DeviceList name="Devices" ids={ids} />
        ) : (
          <p className="panel-body muted">None are known. They are listed when the host is up.</p>
        )}
      </section>
      {name !== LOCAL && isAdmin && <SettingsPanel name={name} version={`${host.address} ${host.state}`} />}
      {name !== LOCAL && isAdmin && <ChecksPanel name={name} />}
    </div>
  );
}

function HostHeader({ host }: { host: HostRow }) {
  const { store } = useSite();
  useSecond();
  const labels = ownLabels(host.labels);
  const agent = agentOf(host);
  const hasFiles = host.name !== LOCAL && definitionOf(host.name) === host.name;
  const facts: [string, ReactNode][] = [
    ["driver", [host.driver, host.engine_version].filter(Boolean).join(" ")],
    ["round trip", host.rtt_ms === null ? "" : millis(host.rtt_ms)],
    ["devices", `${plural(host.gpus, "GPU")}, ${plural(host.cpu_slots, "CPU slot")}`],
    ["replicas", String(host.replicas)],
    ["disk", host.disk_free_mib === null ? "" : `${mebibytes(host.disk_free_mib)} free`],
    ["model files", !hasFiles ? "" : `${plural(host.cached_files, "file")}, ${mebibytes(host.cached_mib)}`],
    ["images sent", !hasFiles ? "" : String(host.images)],
    ["clock", host.clock_offset_s === null ? "" : `${host.clock_offset_s.toFixed(3)} s`],
    ["sending", host.transfer],
  ];
  return (
    <header className="panel host-page-head">
      <div className="row-of">
        <h1 className="cut">{host.name}</h1>
        <span role="status">
          <StateText state={host.state} />
        </span>
        <span className="muted">for {span(store.serverNow_s() - host.since_s)}</span>
      </div>
      <p className="muted">
        {host.name === LOCAL ? "the server's own machine" : <span className="mono">{host.address}</span>}
        {labels.map((label) => (
          <span key={label} className="tag host-label">
            {label}
          </span>
        ))}
      </p>
      {host.reason && <p className={host.state === "up" ? "" : "host-trouble"}>{host.reason}</p>}
      {agent && <p>{agent}</p>}
      <Facts facts={facts} />
    </header>
  );
}

/** Stored settings, fetched: no event has them. Those of a node are its cluster's. */
function SettingsPanel({ name, version }: { name: string; version: string }) {
  const definition = definitionOf(name);
  const { data, problem } = useFetched<HostDetail>(`/hosts/${encodeURIComponent(definition)}`, version);
  const settings = data?.settings;
  return (
    <section className="panel" aria-labelledby="host-settings-title">
      <div className="panel-head">
        <h2 id="host-settings-title">{definition === name ? "Settings" : `Settings of ${definition}`}</h2>
      </div>
      <div className="panel-body">
        {problem && <p className="bad">{problem.message}</p>}
        {settings && <Facts facts={settings.kind === "ssh" ? loginFacts(settings) : clusterFacts(settings)} />}
      </div>
    </section>
  );
}

function loginFacts(settings: SshHostSettings): [string, ReactNode][] {
  return [
    ["host key", settings.host_key ? <span className="mono">{settings.host_key}</span> : "that of known_hosts"],
    ["private key", settings.identity ? <span className="mono">{settings.identity}</span> : "those of the server's user"],
    ["Docker's socket", <span className="mono">{settings.engine}</span>],
    ["limit of model files", mebibytes(settings.files_mib)],
  ];
}

function clusterFacts(settings: KubernetesHostSettings): [string, ReactNode][] {
  const nodes = Object.entries(settings.node_selector).map(([key, value]) => `${key}=${value}`);
  const memory = settings.cpu_mib ? mebibytes(settings.cpu_mib) : "4/5 of the memory";
  const taints = settings.tolerations.map((one) => [one.key, one.effect].filter(Boolean).join(":"));
  return [
    ["image", <span className="mono">{settings.image}</span>],
    ["image for GPUs", settings.cuda_image ? <span className="mono">{settings.cuda_image}</span> : "none: no GPU is used"],
    ["nodes", nodes.length ? nodes.join(", ") : "all"],
    ["slots of each node", settings.cpu_slots ? `${plural(settings.cpu_slots, "CPU slot")} with ${memory}` : "no CPU slots"],
    ["GPUs by", settings.devices],
    ["tolerated taints", taints.join(", ")],
    ["priorities", [settings.priority_class, settings.idle_class].filter(Boolean).join(", ")],
  ];
}

function Facts({ facts }: { facts: [string, ReactNode][] }) {
  return (
    <dl className="host-facts">
      {facts.map(
        ([name, value]) =>
          value && (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ),
      )}
    </dl>
  );
}
