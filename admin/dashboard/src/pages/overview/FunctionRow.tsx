import { memo, type ReactElement } from "react";
import type { FunctionRow as Line } from "../../api/types.ts";
import { Sparkline } from "../../design/Sparkline.tsx";
import { shownState, StateText } from "../../design/State.tsx";
import { ago, count, countdown, millis, rate } from "../../design/format.ts";
import { ActionsButton } from "../../actions/ActionsButton.tsx";
import { go } from "../../route/address.ts";
import { functionHash } from "../../route/hash.ts";
import { useSecond } from "../../store/clock.ts";
import { useActivity, useFunction, useOrderVersion, useSite } from "../../store/hooks.ts";
import type { Column } from "./columns.ts";

interface Row {
  name: string;
  /** Position in the list, from 0. */
  at: number;
  height: number;
  columns: readonly Column[];
  isActive: boolean;
  onActive: (name: string) => void;
}

/** One positioned row: moving it does not render its cells again. */
export const FunctionRow = memo(function FunctionRow({ name, at, height, columns, isActive, onActive }: Row) {
  return (
    <div
      role="row"
      aria-rowindex={at + 2}
      aria-selected={isActive}
      tabIndex={isActive ? 0 : -1}
      className="function-grid function-row"
      style={{ transform: `translateY(${at * height}px)`, height }}
      onFocus={() => onActive(name)}
      onClick={(event) => {
        if (!(event.target as HTMLElement).closest("a, button")) go(functionHash(name));
      }}
    >
      <Cells name={name} columns={columns} isActive={isActive} />
    </div>
  );
});

/** Rendered only when the function's own line changes; countdowns render themselves. */
const Cells = memo(function Cells({ name, columns, isActive }: { name: string; columns: readonly Column[]; isActive: boolean }) {
  const line = useFunction(name);
  if (!line) return null;
  return columns.map(({ key, isNumber, title }) => (
    <div key={key} role="gridcell" className={`cell ${key}${isNumber ? " right" : ""}`} data-title={title}>
      {CELLS[key]?.(line, isActive)}
    </div>
  ));
});

const CELLS: Record<string, (line: Line, isActive: boolean) => ReactElement> = {
  name: (line) => <Name line={line} />,
  status: (line) => <Status line={line} />,
  held: (line) => <Number value={line.held} isHot={line.held > 0} />,
  flight: (line) => <Number value={line.in_flight} />,
  rate: (line) => <span className={line.rate ? "" : "faint"}>{rate(line.rate)}</span>,
  trend: (line) => <Trend name={line.name} />,
  p50: (line) => <span className={line.p50_ms === null ? "faint" : ""}>{millis(line.p50_ms)}</span>,
  p95: (line) => <span className={line.p95_ms === null ? "faint" : ""}>{millis(line.p95_ms)}</span>,
  sleeps: (line) => <SleepsIn line={line} />,
  error: (line) => <LastError name={line.name} />,
  more: (line, isActive) => <ActionsButton name={line.name} isReachable={isActive} />,
};

function Name({ line }: { line: Line }) {
  const labels = Object.entries(line.labels);
  return (
    <>
      <a className="function-name cut" href={functionHash(line.name)} tabIndex={-1}>
        {line.name}
      </a>
      <span className="second cut">
        @{line.revision.split("@")[1]}
        {line.engine === "server" && " · server"}
        {labels.map(([key, value]) => ` · ${key}=${value}`)}
      </span>
    </>
  );
}

function Number({ value, isHot = false }: { value: number; isHot?: boolean }) {
  return <span className={isHot ? "hot" : value ? "" : "faint"}>{count(value)}</span>;
}

function Status({ line }: { line: Line }) {
  const look = shownState(line);
  const more = line.state === "warm" || line.state === "draining" ? `${line.ready}/${Math.max(line.max, line.ready)}` : undefined;
  return (
    <>
      <StateText state={look} word={line.state} {...(more ? { more } : {})} />
      {line.state === "waking" ? (
        <Waking line={line} />
      ) : (
        <span className={`second cut${look === line.state ? "" : " is-trouble"}`} title={line.reason}>
          {line.reason}
        </span>
      )}
    </>
  );
}

/** The current phase, with a countdown of its expected remaining time. */
function Waking({ line }: { line: Line }) {
  useSecond();
  const { store } = useSite();
  const left_ms = line.ready_in_ms === null ? null : line.ready_in_ms - (Date.now() - store.heardAt_ms(line.name));
  return (
    <span className="second cut">
      {line.awaited ?? line.phase ?? line.reason}
      {left_ms !== null && (left_ms > 0 ? ` · ${countdown(left_ms / 1000)} left` : " · any moment")}
    </span>
  );
}

function SleepsIn({ line }: { line: Line }) {
  if (line.sleeps_at_s !== null) return <Until at_s={line.sleeps_at_s} />;
  if (line.state !== "warm") return <span className="faint">–</span>;
  return <span className="muted">{line.held + line.in_flight > 0 || line.rate > 0 ? "busy" : line.min > 0 ? "stays" : "–"}</span>;
}

function Until({ at_s }: { at_s: number }) {
  useSecond();
  const { store } = useSite();
  return <span>{countdown(at_s - store.serverNow_s())}</span>;
}

function Trend({ name }: { name: string }) {
  const { store } = useSite();
  useOrderVersion();
  const ring = store.ring(name);
  if (!ring) return <span className="trend-none" aria-label="no requests" role="img" />;
  const values = ring.toArray();
  return <Sparkline values={values} width={92} height={24} label={`rate of the last minute, at most ${rate(Math.max(...values))} a second`} />;
}

function LastError({ name }: { name: string }) {
  const last = useActivity(name).errors[0];
  if (!last) return <span className="faint">–</span>;
  return (
    <>
      <span className="error-code cut" title={last.detail}>
        {last.code}
        {last.count > 1 ? ` ×${count(last.count)}` : ""}
      </span>
      <span className="second cut" title={last.detail}>
        <Ago at_s={last.at_s} />
      </span>
    </>
  );
}

function Ago({ at_s }: { at_s: number }) {
  useSecond();
  const { store } = useSite();
  return <>{ago(store.serverNow_s() - at_s)}</>;
}
