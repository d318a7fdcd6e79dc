import type { ReactNode } from "react";
import type { FunctionRow } from "../../api/types.ts";
import { Sparkline } from "../../design/Sparkline.tsx";
import { shownState, StateText } from "../../design/State.tsx";
import { countdown, millis, rate, span } from "../../design/format.ts";
import { useSecond } from "../../store/clock.ts";
import { topic } from "../../store/store.ts";
import { useSite, useTopic } from "../../store/hooks.ts";

/** State of the function at a glance, with `actions` beside it. */
export function Header({ line, actions }: { line: FunctionRow; actions: ReactNode }) {
  const look = shownState(line);
  return (
    <header className="fn-head panel">
      <div className="fn-title">
        <div className="row-of">
          <h1>{line.name}</h1>
          <span className="fn-state" role="status">
            <StateText state={look} word={line.state} more={line.state === "warm" ? `${line.ready}/${line.max}` : ""} />
          </span>
          <Doing line={line} />
        </div>
        <p className="muted">
          <span className="mono">{line.revision}</span>
          {line.engine === "server" && " · server"}
          {line.reason && " · "}
          <span className={look === line.state ? "" : "is-trouble"}>{line.reason}</span>
          {line.park?.off && ` · not parked: ${line.park.off}`}
          {Object.entries(line.labels).map(([key, value]) => (
            <span key={key} className="tag fn-label">
              {key}={value}
            </span>
          ))}
        </p>
      </div>
      <div className="fn-actions">{actions}</div>
      <Facts line={line} />
    </header>
  );
}

/** While waking: phase and remaining time. While idle: time until the replica stops. */
export function Doing({ line }: { line: FunctionRow }) {
  const { store } = useSite();
  useSecond();
  if (line.state === "waking") {
    const left_ms = leftOf(line, Date.now() - store.heardAt_ms(line.name));
    return (
      <span className="fn-doing waking">
        {line.awaited ?? line.phase ?? "starting"}
        {left_ms !== null &&
          ` · ${left_ms > 0 ? `about ${left_ms < 1000 ? "a second" : span(left_ms / 1000)} left` : "any moment now"}`}
      </span>
    );
  }
  if (line.sleeps_at_s !== null) {
    return <span className="fn-doing muted">sleeps in {countdown(line.sleeps_at_s - store.serverNow_s())}</span>;
  }
  return null;
}

/** Expected milliseconds until ready, from the estimate that arrived `heard_ms` ago; null if unknown. */
export function leftOf(line: Pick<FunctionRow, "ready_in_ms">, heard_ms: number): number | null {
  return line.ready_in_ms === null ? null : line.ready_in_ms - heard_ms;
}

function Facts({ line }: { line: FunctionRow }) {
  const { store } = useSite();
  useTopic(topic.order, (store) => store.orderVersion);
  useSecond();
  const ring = store.ring(line.name)?.toArray() ?? [];
  const isServer = line.engine === "server";
  const firstByte: [string, string][] = [
    ["first byte p50", millis(line.first_byte_p50_ms)],
    ["first byte p95", millis(line.first_byte_p95_ms)],
  ];
  const facts: [string, string][] = [
    ["replicas", `${line.ready} of ${line.wanted} wanted`],
    ["held", String(line.held)],
    [isServer ? "open" : "in flight", String(line.in_flight)],
    ["requests/s", rate(line.rate)],
    ...(isServer ? firstByte : []),
    [isServer ? "exchange p50" : "p50", millis(line.p50_ms)],
    [isServer ? "exchange p95" : "p95", millis(line.p95_ms)],
    ["usual cold start", millis(line.cold_start_ms)],
    ...(line.park?.wake_ms ? ([["wake", millis(line.park.wake_ms)]] as [string, string][]) : []),
    [line.state, `for ${span(Math.max(0, store.serverNow_s() - line.since_s))}`],
  ];
  return (
    <dl className="fn-facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
      {ring.length > 0 && (
        <div className="fn-spark">
          <dt className="unseen">requests per second over the last minute</dt>
          <dd>
            <Sparkline
              values={ring}
              width={132}
              height={30}
              label={`the last minute, now ${rate(line.rate)} per second`}
            />
          </dd>
        </div>
      )}
    </dl>
  );
}
