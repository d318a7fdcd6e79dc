import { useMemo, useRef, useState } from "react";
import { useFetched } from "../../api/fetched.ts";
import { clockTime, count, percent } from "../../design/format.ts";
import { settle } from "../../route/address.ts";
import { hashOf } from "../../route/hash.ts";
import { useBeat } from "../../store/hooks.ts";
import { Axis } from "../../timeline/Axis.tsx";
import { Cursor } from "../../timeline/Cursor.tsx";
import { Facts } from "../../timeline/Facts.tsx";
import { bucketAt } from "../../timeline/lanes.ts";
import { Lane } from "../../timeline/Lane.tsx";
import { hoursOf, SpanChoice, UseLegend } from "../../timeline/Span.tsx";
import "../../timeline/timeline.css";
import type { Timeline, Totals } from "../../api/types.ts";
import { useWidth } from "../../timeline/width.ts";
import { brief, busyShare, time, timesOf } from "../../timeline/words.ts";
import { FunctionLanes } from "./FunctionLanes.tsx";

const EVERY_S = 15;

/** Use of devices and functions in the last hour or day. */
export function TimelinePage({ query }: { query: URLSearchParams }) {
  const hours = hoursOf(query);
  const beat = useBeat();
  const version = Math.floor((beat?.at_s ?? 0) / EVERY_S);
  const { data, problem } = useFetched<Timeline>(`/timeline?hours=${hours}`, version, 5_000);
  return (
    <div className="page live">
      <div className="row-of">
        <h1>Timeline</h1>
        <span className="spread" />
        <SpanChoice
          hours={hours}
          onHours={(next) => settle(hashOf("/timeline", { hours: next === 1 ? "" : String(next) }))}
        />
      </div>
      {problem && <p className={data ? "note warn" : "note bad"}>{problem.message}</p>}
      {!data && !problem && <p className="muted">…</p>}
      {data && (
        <>
          <Sums data={data} />
          <Devices data={data} />
          <FunctionLanes key={hours} data={data} hours={hours} />
        </>
      )}
    </div>
  );
}

function Sums({ data }: { data: Timeline }) {
  const sum = (part: keyof Totals) => data.devices.reduce((total, one) => total + one[part], 0);
  const requests = data.functions.reduce((total, one) => total + one.requests, 0);
  const all = sum("busy_s") + sum("idle_s") + sum("waking_s");
  const facts: [string, string][] = [
    ["busy device time", time(sum("busy_s"))],
    ["idle device time", time(sum("idle_s"))],
    ["waking device time", time(sum("waking_s"))],
    ["of the time taken busy", all > 0 ? percent(sum("busy_s") / all) : "–"],
    ["requests", count(requests)],
  ];
  return (
    <section className="panel panel-body stack" aria-label="Sums">
      <Facts facts={facts} />
      <UseLegend />
    </section>
  );
}

function Devices({ data }: { data: Timeline }) {
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  const [cursor_s, setCursor] = useState<number | null>(null);
  const { from_s, to_s, bucket_s } = data;
  const scale = useMemo(() => ({ from_s, to_s, width }), [from_s, to_s, width]);
  const at_s = cursor_s ?? to_s - bucket_s;
  const words = data.devices
    .map((device) => `${device.id} ${timesOf(bucketAt(device.use, at_s, bucket_s))}`)
    .slice(0, 8)
    .join("; ");
  return (
    <section className="panel" aria-labelledby="devices-title">
      <div className="tl-row is-head">
        <h2 id="devices-title">Devices</h2>
        <span className="tl-lane tl-wide">{cursor_s === null ? "" : `at ${clockTime(cursor_s)}`}</span>
        <span className="right">busy</span>
        <span className="right">idle</span>
        <span className="right tl-wide">waking</span>
        <span className="right tl-wide">use</span>
      </div>
      {data.devices.length === 0 && <p className="panel-body muted">No device was used.</p>}
      <div role="list" aria-label="Devices">
        {data.devices.map((device) => {
          const shown = cursor_s === null ? device : (bucketAt(device.use, cursor_s, bucket_s) ?? NOTHING);
          const span_s = cursor_s === null ? to_s - from_s : bucket_s;
          return (
            <div key={device.id} role="listitem" className="tl-row">
              <span className="tl-name cut mono">{device.id}</span>
              <div className="tl-lane">
                <Lane use={device.use} bucket_s={bucket_s} scale={scale} height={28} cursor_s={cursor_s} />
              </div>
              <span className="right">{brief(shown.busy_s)}</span>
              <span className="right">{brief(shown.idle_s)}</span>
              <span className="right tl-wide">{brief(shown.waking_s)}</span>
              <span className="right tl-wide">{percent(busyShare(shown, span_s))}</span>
            </div>
          );
        })}
      </div>
      <div className="tl-axis">
        <span className="small muted">← → move in time</span>
        <div ref={box} className="lanes">
          <Cursor
            scale={scale}
            bucket_s={bucket_s}
            cursor_s={cursor_s}
            words={words}
            label="Time cursor of all devices"
            onMove={setCursor}
          >
            <Axis scale={scale} cursor_s={cursor_s} />
          </Cursor>
        </div>
      </div>
    </section>
  );
}

const NOTHING: Totals = { busy_s: 0, idle_s: 0, waking_s: 0 };
