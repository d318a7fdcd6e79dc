import { memo, useMemo, useRef, useState } from "react";
import { functionPath } from "../api/client.ts";
import { useFetched } from "../api/fetched.ts";
import { clockTime, count } from "../design/format.ts";
import { Axis } from "./Axis.tsx";
import { Cursor } from "./Cursor.tsx";
import { Facts } from "./Facts.tsx";
import { barPath, blocks, bucketAt, summed, x, type Scale } from "./lanes.ts";
import { Lane } from "./Lane.tsx";
import { SpanChoice, UseLegend, type Hours } from "./Span.tsx";
import "./timeline.css";
import type { FunctionTimeline, BucketUse } from "../api/types.ts";
import { useWidth } from "./width.ts";
import { time, timesOf } from "./words.ts";

const EVERY_MS = 30_000;
const DEVICES_SHOWN = 6;

/** The function's states and calls over time. `version` changes with its state. */
export const FunctionTimelinePanel = memo(function FunctionTimelinePanel({
  name,
  version,
}: {
  name: string;
  version: string | number;
}) {
  const [hours, setHours] = useState<Hours>(1);
  const path = `${functionPath(name)}/timeline?hours=${hours}`;
  const { data, problem } = useFetched<FunctionTimeline>(path, version, hours === 1 ? EVERY_MS / 6 : EVERY_MS);
  return (
    <section className="panel" aria-labelledby="timeline-title">
      <div className="panel-head">
        <h2 id="timeline-title">Timeline</h2>
        <span className="spread" />
        <SpanChoice hours={hours} onHours={setHours} />
      </div>
      {problem && !data && <p className="panel-body muted">{problem.message}</p>}
      {data && <Drawn data={data} />}
    </section>
  );
});

function Drawn({ data }: { data: FunctionTimeline }) {
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  const [cursor_s, setCursor] = useState<number | null>(null);
  const { from_s, to_s, bucket_s, totals } = data;
  const scale = useMemo(() => ({ from_s, to_s, width }), [from_s, to_s, width]);
  const all = useMemo(() => summed(data.use), [data.use]);
  const devices = useMemo(() => [...new Set(data.use.map((one) => one.device))].sort(), [data.use]);
  const words = wordsAt(data, all, cursor_s ?? to_s - bucket_s);
  const facts: [string, string][] = [
    ["busy", time(totals.busy_s)],
    ["idle", time(totals.idle_s)],
    ["waking", time(totals.waking_s)],
    ["cold starts", count(totals.cold_starts)],
    ["requests", count(totals.requests)],
  ];
  return (
    <div className="panel-body stack">
      <Facts facts={facts} />
      <div ref={box} className="lanes">
        <Cursor
          scale={scale}
          bucket_s={bucket_s}
          cursor_s={cursor_s}
          words={words}
          label="Time cursor of this function"
          onMove={setCursor}
        >
          <States data={data} scale={scale} cursor_s={cursor_s} />
          {devices.slice(0, DEVICES_SHOWN).map((device) => (
            <DeviceLane key={device} device={device} data={data} scale={scale} cursor_s={cursor_s} />
          ))}
          <Arrivals data={data} scale={scale} cursor_s={cursor_s} />
          <Axis scale={scale} cursor_s={cursor_s} />
        </Cursor>
      </div>
      <p className="use-read" aria-hidden="true">
        <b>{clockTime(cursor_s ?? to_s - bucket_s)}</b> {words}
      </p>
      <UseLegend withStates />
      <UseTable use={all} data={data} />
    </div>
  );
}

function DeviceLane({
  device,
  data,
  scale,
  cursor_s,
}: {
  device: string;
  data: FunctionTimeline;
  scale: Scale;
  cursor_s: number | null;
}) {
  const use = useMemo(() => data.use.filter((one) => one.device === device), [data.use, device]);
  return (
    <div className="lane-named">
      <span className="lane-name mono">{device}</span>
      <Lane use={use} bucket_s={data.bucket_s} scale={scale} height={26} cursor_s={cursor_s} />
    </div>
  );
}

function States({ data, scale, cursor_s }: { data: FunctionTimeline; scale: Scale; cursor_s: number | null }) {
  const drawn = useMemo(() => blocks(data.states, scale), [data.states, scale]);
  return (
    <div className="lane-named">
      <span className="lane-name">state</span>
      <svg className="lane states" width={scale.width} height="12" viewBox={`0 0 ${scale.width} 12`} aria-hidden="true">
        {drawn.map((block) => (
          <rect
            key={block.left}
            className={`is-${block.state}`}
            x={block.left}
            width={Math.max(0.8, block.width)}
            height="12"
          />
        ))}
        {cursor_s !== null && <line className="cursor" x1={x(scale, cursor_s)} x2={x(scale, cursor_s)} y2="12" />}
      </svg>
    </div>
  );
}

function Arrivals({ data, scale, cursor_s }: { data: FunctionTimeline; scale: Scale; cursor_s: number | null }) {
  // Arrivals are stored per minute, independent of the bucket size.
  const path = useMemo(() => barPath(data.arrivals, Math.max(60, data.bucket_s), scale, 22), [data, scale]);
  return (
    <div className="lane-named">
      <span className="lane-name">requests</span>
      <svg
        className="lane arrivals"
        width={scale.width}
        height="22"
        viewBox={`0 0 ${scale.width} 22`}
        aria-hidden="true"
      >
        {path && <path d={path} />}
        {cursor_s !== null && <line className="cursor" x1={x(scale, cursor_s)} x2={x(scale, cursor_s)} y2="22" />}
      </svg>
    </div>
  );
}

function wordsAt(data: FunctionTimeline, all: readonly BucketUse[], at_s: number): string {
  const state = data.states.find(
    (one) => one.from_s <= at_s + data.bucket_s / 2 && at_s + data.bucket_s / 2 < one.to_s,
  );
  const calls = data.arrivals
    .filter((one) => one.at_s >= at_s && one.at_s < at_s + data.bucket_s)
    .reduce((sum, one) => sum + one.count, 0);
  const parts = [timesOf(bucketAt(all, at_s, data.bucket_s)), `${count(calls)} requests`];
  if (state) parts.unshift(state.reason ? `${state.state}, ${state.reason}` : state.state);
  return parts.join(" · ");
}

const ROWS_MAX = 150;

function UseTable({ use, data }: { use: readonly BucketUse[]; data: FunctionTimeline }) {
  const rows = use.filter((one) => one.busy_s + one.idle_s + one.waking_s > 0).slice(-ROWS_MAX);
  return (
    <details className="fold">
      <summary>As a table</summary>
      <div className="scroll-x" tabIndex={0} role="region" aria-label="Use over time">
        <table className="plain numbers">
          <thead>
            <tr>
              {["from", "busy", "idle", "waking"].map((head) => (
                <th key={head} scope="col" className={head === "from" ? "" : "right"}>
                  {head}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((one) => (
              <tr key={one.at_s}>
                <th scope="row">{clockTime(one.at_s)}</th>
                <td className="right">{time(one.busy_s)}</td>
                <td className="right">{time(one.idle_s)}</td>
                <td className="right">{time(one.waking_s)}</td>
              </tr>
            ))}
          </tbody>
        </table>
        {rows.length === 0 && <p className="muted">Nothing ran between {clockTime(data.from_s)} and now.</p>}
      </div>
    </details>
  );
}
