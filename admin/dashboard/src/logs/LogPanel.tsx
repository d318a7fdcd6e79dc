import { memo, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { count } from "../design/format.ts";
import { useWindowed } from "../design/windowed.ts";
import { useSite } from "../store/hooks.ts";
import { follow, type Following } from "./follow.ts";
import { isAtEnd, Lines, LINES_MAX, matching, type Line } from "./lines.ts";
import "./logs.css";

const ROW_PX = 19;

/** Live log of the function's replicas. */
export const LogPanel = memo(function LogPanel({ name }: { name: string }) {
  const { all, state, came } = useLog(name);
  const [held, setHeld] = useState<{ lines: readonly Line[]; came: number } | null>(null);
  const [filter, setFilter] = useState("");
  const source = held?.lines ?? all;
  const shown = useMemo(() => matching(source, filter), [source, filter]);
  const missed = held ? came - held.came : 0;
  return (
    <section className="panel" aria-labelledby="logs-title">
      <div className="panel-head log-head">
        <h2 id="logs-title">Logs</h2>
        <span className="small muted" role="status">
          {wordsFor(state, held !== null, missed)}
        </span>
        <span className="spread" />
        <input
          className="field log-filter"
          type="search"
          placeholder="Filter lines"
          aria-label="Filter lines"
          value={filter}
          onChange={(event) => setFilter(event.target.value)}
        />
        <button
          className="button"
          type="button"
          aria-pressed={held !== null}
          onClick={() => setHeld(held ? null : { lines: all, came })}
        >
          {held ? "Resume" : "Pause"}
        </button>
      </div>
      <LogLines
        lines={shown}
        none={source.length ? `None of ${count(source.length)} lines has “${filter}”.` : noneYet(state)}
      />
      {source.length >= LINES_MAX && (
        <p className="small muted log-foot">The last {count(LINES_MAX)} lines; earlier lines are not kept on this page.</p>
      )}
    </section>
  );
});

function useLog(name: string): { all: readonly Line[]; state: Following; came: number } {
  const { client } = useSite();
  const lines = useMemo(() => new Lines(), [name]);
  const [state, setState] = useState<Following>({ is: "connecting" });
  const [all, setAll] = useState(lines.all);
  useEffect(() => {
    const stop = new AbortController();
    let frame = 0;
    const draw = () => {
      frame = 0;
      setAll(lines.all);
    };
    const onLines = () => {
      // Once per frame for any number of received pieces.
      frame ||= requestAnimationFrame(draw);
    };
    void follow(client, name, lines, { onLines, onState: setState }, stop.signal);
    return () => {
      stop.abort();
      cancelAnimationFrame(frame);
    };
  }, [client, name, lines]);
  return { all, state, came: lines.count };
}

function LogLines({ lines, none }: { lines: readonly Line[]; none: string }) {
  const scroller = useRef<HTMLDivElement>(null);
  const list = useRef<HTMLOListElement>(null);
  const follows = useRef(true);
  const span = useWindowed(list, lines.length, ROW_PX, scroller);
  useLayoutEffect(() => {
    const box = scroller.current;
    if (box && follows.current) box.scrollTop = box.scrollHeight;
  }, [lines]);
  const seen = lines.slice(span.first, span.end);
  return (
    <div
      ref={scroller}
      className="log-scroll"
      tabIndex={0}
      role="region"
      aria-label="Log lines"
      onScroll={(event) => {
        follows.current = isAtEnd(event.currentTarget, ROW_PX);
      }}
    >
      {lines.length === 0 && <p className="muted log-none">{none}</p>}
      <ol
        ref={list}
        className="log-list"
        style={{ height: lines.length * ROW_PX }}
        aria-label={`${count(lines.length)} lines`}
      >
        {seen.map((line, at) => (
          <li
            key={line.n}
            className={line.isNote ? "log-line is-note" : "log-line"}
            style={{ top: (span.first + at) * ROW_PX }}
          >
            <span className="log-who">{line.replica}</span>
            {line.text}
          </li>
        ))}
      </ol>
    </div>
  );
}

function wordsFor(state: Following, isHeld: boolean, missed: number): string {
  if (isHeld) return missed ? `paused, ${count(missed)} new` : "paused";
  if (state.is === "connecting") return "connecting";
  if (state.is === "live") return "following";
  return `${state.is === "away" ? "reconnecting" : "ended"}: ${state.why}`;
}

function noneYet(state: Following): string {
  return state.is === "live"
    ? "No output yet. Output appears here as soon as a replica starts."
    : "";
}
