import { useState } from "react";
import { PHASES, type ColdStart, type ColdStartTimes } from "../api/types.ts";
import { ago, clockTime, millis, plural } from "../design/format.ts";
import { useSecond } from "../store/clock.ts";
import { useSite } from "../store/hooks.ts";
import { Legend, phaseColour, PhaseBar, type Key, type Piece } from "./PhaseBar.tsx";
import { Quantiles } from "./Quantiles.tsx";
import { keyOf, length_ms, placeOf, rest, scaleOf, segments, sentence } from "./waterfall.ts";

const SHOWN = 12;
/** The time outside of all phases. */
const OTHER = "other";

/** The last cold starts as bars on one scale, and their quantiles. `starts`: newest first. */
export function ColdStarts({ starts, table }: { starts: readonly ColdStart[]; table: ColdStartTimes[] }) {
  const [pointed, setPointed] = useState<string | null>(null);
  const shown = starts.slice(0, SHOWN);
  const scale_ms = scaleOf(shown);
  const looked = shown.find((start) => keyOf(start) === pointed) ?? shown[0];
  if (!looked) {
    return (
      <p className="panel-body muted">
        No cold start yet. The first call wakes the function; its phases appear here.
      </p>
    );
  }
  const keys: Key[] = PHASES.filter((phase) => shown.some((start) => (start.phases[phase] ?? 0) > 0)).map((phase) => ({
    name: phase,
    colour: phaseColour(phase),
    text: millis(looked.phases[phase]),
  }));
  const other_ms = looked.total_ms - length_ms({ ...looked, total_ms: 0 });
  if (shown.some((start) => rest(start, scale_ms))) {
    keys.push({ name: OTHER, colour: phaseColour(OTHER), text: other_ms > 0 ? millis(other_ms) : "–" });
  }
  return (
    <>
      <div className="panel-body">
        <Legend keys={keys} of={`${looked === shown[0] ? "the last" : "the one"} at ${clockTime(looked.at_s)}:`} />
      </div>
      <div className="falls-scale" aria-hidden="true">
        <span />
        <span>
          <span>0</span>
          <span>{millis(scale_ms / 2)}</span>
          <span>{millis(scale_ms)}</span>
        </span>
      </div>
      <ol className="falls" aria-label={`The last ${plural(shown.length, "cold start")}, newest first`}>
        {shown.map((start) => (
          <Fall key={keyOf(start)} start={start} scale_ms={scale_ms} onPoint={setPointed} />
        ))}
      </ol>
      {table.length > 0 && <Quantiles table={table} />}
    </>
  );
}

function Fall({
  start,
  scale_ms,
  onPoint,
}: {
  start: ColdStart;
  scale_ms: number;
  onPoint: (key: string | null) => void;
}) {
  const { store } = useSite();
  useSecond();
  const pieces: Piece[] = segments(start.phases, scale_ms).map(({ phase, from, share }) => ({
    name: phase,
    colour: phaseColour(phase),
    from,
    share,
  }));
  const other = rest(start, scale_ms);
  if (other) pieces.push({ name: OTHER, colour: phaseColour(OTHER), ...other });
  const old_s = store.serverNow_s() - start.at_s;
  const isReady = start.outcome === "ready";
  const words = `${millis(start.total_ms)} ${isReady ? "" : `${start.outcome} `}on ${placeOf(start)}: ${sentence(start.phases)}`;
  const point = () => onPoint(keyOf(start));
  return (
    // Focusable, since its phases show in the legend only while it is pointed at.
    <li className={old_s < 3 ? "fall is-new" : "fall"} tabIndex={0} onMouseEnter={point} onFocus={point} title={words}>
      <span className="muted">{ago(old_s)}</span>
      <span className="cut small fall-where">
        <span className="mono">{start.replica}</span> <span className="muted">{placeOf(start)}</span>
      </span>
      <PhaseBar pieces={pieces} />
      <span className={isReady ? "right" : "right bad"}>{isReady ? millis(start.total_ms) : start.outcome}</span>
      <span className="unseen">{words}</span>
    </li>
  );
}
