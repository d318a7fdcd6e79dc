import { memo, useEffect, useRef, useState } from "react";
import { bytes, count, millis } from "../../design/format.ts";
import { ProblemNote, ReceiptBar, RequestId } from "../OutcomeView.tsx";
import type { Seen } from "./exchange.ts";
import { EVENTS_MAX, type Arrived } from "./stream.ts";

const ENDS = { waiting: "", open: "open", done: "", aborted: "aborted", broken: "broken off" } as const;

/** The answer of a server, also while it arrives. */
export function AnswerView({ seen }: { seen: Seen }) {
  const { status, problem, phase } = seen;
  const isBad = problem !== null || status >= 400 || phase === "broken";
  return (
    <div className="outcome">
      <p className="row-of">
        <b className={isBad ? "outcome-status bad" : "outcome-status good"}>{status || "no answer"}</b>
        {ENDS[phase] && <span className="tag">{ENDS[phase]}</span>}
        <span>{millis(seen.ms)}</span>
        {seen.size > 0 && <span className="muted">{bytes(seen.size)}</span>}
        {seen.firstMs !== null && <span className="muted">first byte after {millis(seen.firstMs)}</span>}
        {seen.isEvents && <span className="muted">{count(seen.eventCount)} events</span>}
        <RequestId id={seen.request_id} />
      </p>
      <ProblemNote problem={problem} />
      {seen.receipt && <ReceiptBar receipt={seen.receipt} />}
      {seen.headers.length > 0 && <Headers headers={seen.headers} />}
      {seen.media && <Media media={seen.media} />}
      {seen.isEvents ? <Events seen={seen} /> : !seen.media && <Text seen={seen} />}
    </div>
  );
}

function Media({ media }: { media: Blob }) {
  const [url, setUrl] = useState("");
  useEffect(() => {
    const made = URL.createObjectURL(media);
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [media]);
  if (!url) return null;
  if (media.type.startsWith("audio/")) return <audio className="play-media" src={url} controls aria-label="The answer" />;
  return <img className="play-media" src={url} alt="The answer" />;
}

function Headers({ headers }: { headers: [string, string][] }) {
  return (
    <details className="fold">
      <summary>{headers.length} headers</summary>
      <dl className="play-headers">
        {headers.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </details>
  );
}

function Text({ seen }: { seen: Seen }) {
  const box = useFollowed<HTMLPreElement>(seen.phase === "open" ? seen.size : 0);
  if (!seen.text) return null;
  return (
    <>
      <pre ref={box} className="outcome-text" tabIndex={0} role="region" aria-label="The answer's body">
        {seen.text}
      </pre>
      {seen.cut > 0 && <p className="small muted">{bytes(seen.cut)} more are not shown.</p>}
    </>
  );
}

function Events({ seen }: { seen: Seen }) {
  const box = useFollowed<HTMLOListElement>(seen.eventCount);
  if (!seen.eventCount) return null;
  return (
    <>
      {seen.eventCount > EVENTS_MAX && <p className="small muted">The last {EVENTS_MAX} events are shown.</p>}
      <ol ref={box} className="outcome-text play-events" tabIndex={0} aria-label="The answer's events, oldest first">
        {seen.events.map((event) => (
          <Event key={event.n} event={event} />
        ))}
      </ol>
    </>
  );
}

const Event = memo(function Event({ event }: { event: Arrived }) {
  return (
    <li>
      <span className="muted">{millis(event.at_ms)}</span>
      <span>
        {event.type !== "message" && <span className="tag">{event.type}</span>} {event.data}
      </span>
    </li>
  );
}, (before, after) => before.event.n === after.event.n);

/** Keep a box scrolled to its end as `version` grows, unless the reader scrolled up. */
function useFollowed<E extends HTMLElement>(version: number) {
  const box = useRef<E>(null);
  const isAtEnd = useRef(true);
  useEffect(() => {
    const here = box.current;
    if (!here) return;
    const look = () => {
      isAtEnd.current = here.scrollHeight - here.scrollTop - here.clientHeight < 24;
    };
    here.addEventListener("scroll", look, { passive: true });
    return () => here.removeEventListener("scroll", look);
  }, [version > 0]);
  useEffect(() => {
    const here = box.current;
    if (here && version > 0 && isAtEnd.current) here.scrollTop = here.scrollHeight;
  }, [version]);
  return box;
}
