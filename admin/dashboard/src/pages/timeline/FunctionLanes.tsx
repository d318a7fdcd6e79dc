import { useEffect, useMemo, useRef, useState } from "react";
import { functionPath } from "../../api/client.ts";
import { count } from "../../design/format.ts";
import { useWindowed } from "../../design/windowed.ts";
import { useIsNarrow } from "../../design/narrow.ts";
import { functionHash } from "../../route/hash.ts";
import { useSite } from "../../store/hooks.ts";
import { Lane } from "../../timeline/Lane.tsx";
import type { Hours } from "../../timeline/Span.tsx";
import type { FunctionTimeline, FunctionUse, Timeline, BucketUse } from "../../api/types.ts";
import { useWidth } from "../../timeline/width.ts";
import { brief } from "../../timeline/words.ts";
import { LaneCache } from "./laneCache.ts";

const NONE: readonly BucketUse[] = [];

/** The functions that used devices most, each with its lane. */
export function FunctionLanes({ data, hours }: { data: Timeline; hours: Hours }) {
  const list = useRef<HTMLUListElement>(null);
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  const row_px = useIsNarrow() ? 62 : 44;
  const { functions, from_s, to_s, bucket_s } = data;
  const span = useWindowed(list, functions.length, row_px);
  const scale = useMemo(() => ({ from_s, to_s, width }), [from_s, to_s, width]);
  const seen = functions.slice(span.first, span.end);
  const lanes = useLanes(hours, seen);
  return (
    <section className="panel" aria-labelledby="functions-title">
      <div className="tl-row is-head">
        <h2 id="functions-title">Functions</h2>
        <div ref={box} className="tl-lane" />
        <span className="right">busy</span>
        <span className="right">idle</span>
        <span className="right tl-wide">waking</span>
        <span className="right tl-wide">requests</span>
      </div>
      {functions.length === 0 && <p className="panel-body muted">No function ran.</p>}
      <ul ref={list} className="tl-list" style={{ height: functions.length * row_px }}>
        {seen.map((one, at) => (
          <li key={one.name} className="tl-row" style={{ top: (span.first + at) * row_px }}>
            <a className="tl-name cut" href={functionHash(one.name)}>
              {one.name}
            </a>
            <div className="tl-lane">
              <Lane use={lanes?.get(one.name) ?? NONE} bucket_s={bucket_s} scale={scale} height={22} cursor_s={null} />
            </div>
            <span className="right">{brief(one.busy_s)}</span>
            <span className="right">{brief(one.idle_s)}</span>
            <span className="right tl-wide">{brief(one.waking_s)}</span>
            <span className="right tl-wide">{count(one.requests)}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** The lanes of the visible functions, as they arrive. */
function useLanes(hours: Hours, seen: readonly FunctionUse[]): LaneCache | null {
  const { client } = useSite();
  const [cache, setCache] = useState<LaneCache | null>(null);
  const [, setCame] = useState(0);
  useEffect(() => {
    const fetch = (name: string, signal: AbortSignal) =>
      client.get<FunctionTimeline>(`${functionPath(name)}/timeline?hours=${hours}`, signal);
    const made = new LaneCache(fetch, () => setCame((before) => before + 1));
    setCache(made);
    return () => made.stop();
  }, [client, hours]);
  const names = seen.map(({ name }) => name).join(" ");
  useEffect(() => cache?.want(names ? names.split(" ") : []), [cache, names]);
  return cache;
}
