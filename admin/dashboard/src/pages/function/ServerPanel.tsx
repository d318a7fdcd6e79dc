import { memo, type ReactNode } from "react";
import type { FunctionDetail, Golden, Server } from "../../api/types.ts";
import { CopyText } from "../../design/CopyText.tsx";
import { mebibytes, millis } from "../../design/format.ts";
import { exactly } from "../../timeline/words.ts";
import { OpenPage } from "./OpenPage.tsx";

const NETWORKS = { none: "none: loopback only", egress: "egress: the host's network" } as const;

/** Command or image, readiness and path rules of a server function, and a curl command to copy. */
export const ServerPanel = memo(function ServerPanel({ detail, server }: { detail: FunctionDetail; server: Server }) {
  const { wake, free, deny } = server.paths;
  const secrets = Object.entries(server.secrets);
  const { mounts, fields } = server;
  const revision = detail.revisions.find(({ traffic }) => traffic);
  const profile = revision?.profile;
  return (
    <section className="panel" aria-labelledby="server-title">
      <div className="panel-head">
        <h2 id="server-title">Server</h2>
        <span className="tag">http</span>
        <OpenPage name={detail.name} />
      </div>
      <dl className="server-facts panel-body">
        {server.image && (
          <Fact name="image" isWide>
            <span className="mono">{server.image.reference}</span>
            <br />
            <span className="mono small muted">{server.image.digest || server.image.id}</span>
          </Fact>
        )}
        {server.command.length > 0 && (
          <Fact name={server.image ? "arguments" : "command"} isWide>
            <span className="mono">{commandOf(server.command)}</span>
          </Fact>
        )}
        <Fact name="ready">
          {server.ready ? <span className="mono">{server.ready}</span> : "/ with any status below 500"}
        </Fact>
        <Fact name="start, at the deploy">
          {millis(profile?.load_ms)}
          <span className="muted">, at most {exactly(server.start_s)}</span>
        </Fact>
        <Fact name="memory, at the deploy">{mebibytes(profile?.memory_mib)}</Fact>
        <Fact name="network">{NETWORKS[server.network]}</Fact>
        {(profile?.golden || revision?.why_not_golden) && (
          <Fact name="golden sample" isWide>
            {profile?.golden ? goldenOf(profile.golden) : <span className="muted">none: {revision?.why_not_golden}</span>}
          </Fact>
        )}
        <Fact name="stop grace">{exactly(server.stop_grace_s)}</Fact>
        <Fact name="wakes" isWide={wake.length > 0}>
          <Rules rules={wake} none="every request" />
        </Fact>
        {free.length > 0 && (
          <Fact name="takes no slot" isWide>
            <Rules rules={free} none="" />
          </Fact>
        )}
        {deny.length > 0 && (
          <Fact name="denied" isWide>
            <Rules rules={deny} none="" />
          </Fact>
        )}
        {server.env.length > 0 && (
          <Fact name="variables" isWide>
            <Rules rules={server.env} none="" />
          </Fact>
        )}
        {secrets.length > 0 && (
          <Fact name="secrets" isWide>
            <Rules rules={secrets.map(([variable, name]) => `${variable} = ${name}`)} none="" />
          </Fact>
        )}
        {mounts.length > 0 && (
          <Fact name="mounts" isWide>
            <Rules rules={mounts.map((one) => `${one.source} → ${one.target}${one.is_read_only ? "" : ", writable"}`)} none="" />
          </Fact>
        )}
        {fields.length > 0 && (
          <Fact name="fields" isWide>
            <Rules rules={fields} none="" />
          </Fact>
        )}
      </dl>
      <CopyText text={detail.example} label="A call with curl" />
    </section>
  );
});

function Fact({ name, isWide = false, children }: { name: string; isWide?: boolean; children: ReactNode }) {
  return (
    <div className={isWide ? "is-wide" : ""}>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

function Rules({ rules, none }: { rules: readonly string[]; none: string }) {
  if (!rules.length) return none;
  return (
    <ul>
      {rules.map((rule) => (
        <li key={rule}>{rule}</li>
      ))}
    </ul>
  );
}

/** The request whose right answer the trial has learnt, and how answers are compared. */
function goldenOf({ sample: { request, usual_ms, rule } }: Golden): string {
  return `${request.method} ${request.path} in ${millis(usual_ms)}, compared by ${rule}`;
}

/** The command's words, quoted as for a shell where a word needs it. */
export function commandOf(words: readonly string[]): string {
  return words.map((word) => (/^[\w./:@%+=,${}-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");
}
