import { memo, useEffect, useRef, useState } from "react";
import { functionPath } from "../api/client.ts";
import { wordsOf } from "../api/problem.ts";
import { count, millis } from "../design/format.ts";
import { useMayDeploy, useSite } from "../store/hooks.ts";
import { compared, type Compared } from "./advice.ts";
import { ApplyIdle } from "./ApplyIdle.tsx";
import type { Advice } from "../api/types.ts";
import { brief, exactly, signed, time } from "./words.ts";

/** Timeout of a request in which the server simulates a day, once per idle time. */
const PATIENCE_MS = 120_000;

type Asked = { is: "no" } | { is: "out" } | { is: "told"; advice: Advice } | { is: "refused"; why: string };

/** Simulated cost of other idle times, computed on request. */
export const AdvicePanel = memo(function AdvicePanel({ name }: { name: string }) {
  const [asked, setAsked] = useState<Asked>({ is: "no" });
  const { client } = useSite();
  const stop = useRef<AbortController | null>(null);
  useEffect(() => () => stop.current?.abort(), []);
  const ask = async () => {
    const mine = new AbortController();
    stop.current = mine;
    setAsked({ is: "out" });
    try {
      const path = `${functionPath(name)}/advice?hours=24`;
      const { data } = await client.ask<Advice>(path, { signal: mine.signal, timeout_ms: PATIENCE_MS });
      setAsked({ is: "told", advice: data });
    } catch (error) {
      if (!mine.signal.aborted) setAsked({ is: "refused", why: wordsOf(error) });
    }
  };
  return (
    <section className="panel" aria-labelledby="advice-title">
      <div className="panel-head">
        <h2 id="advice-title">Other idle times</h2>
        <span className="spread" />
        <button className="button" type="button" disabled={asked.is === "out"} onClick={() => void ask()}>
          {asked.is === "told" ? "Simulate again" : "Simulate"}
        </button>
      </div>
      <div aria-live="polite">
        {asked.is === "no" && (
          <p className="panel-body muted">
            The requests of the last day, simulated once for each idle time: cost in device time and cold starts
            through the policy.
          </p>
        )}
        {asked.is === "out" && (
          <p className="panel-body muted">Simulating the last day, once for each idle time …</p>
        )}
        {asked.is === "refused" && (
          <div className="panel-body">
            <p className="note warn">{asked.why}</p>
          </div>
        )}
        {asked.is === "told" && <Told name={name} advice={asked.advice} onApplied={() => void ask()} />}
      </div>
    </section>
  );
});

function Told({ name, advice, onApplied }: { name: string; advice: Advice; onApplied: () => void }) {
  const [applying, setApplying] = useState<Compared | null>(null);
  const { may, why } = useMayDeploy();
  const { basis } = advice;
  if (!advice.rows.length) return <Notes notes={advice.notes} />;
  return (
    <>
      <p className="panel-body muted small">
        {count(advice.requests)} requests in {exactly(Math.round((advice.to_s - advice.from_s) / 60) * 60)}, a cold
        start of {millis(basis.cold_start_ms)} ({basis.cold_starts_seen} seen), a run of {millis(basis.run_ms)}.
      </p>
      <div className="scroll-x" tabIndex={0} role="region" aria-label="What other idle times would have meant">
        <table className="plain numbers advice">
          <thead>
            <tr>
              <th scope="col">idle time</th>
              <th scope="col" className="right">
                cold starts
              </th>
              <th scope="col" className="right">
                waited
              </th>
              <th scope="col">idle device time</th>
              <th scope="col" className="right">
                <span className="unseen">action</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {compared(advice.rows).map((row) => (
              <tr key={row.idle_s} className={row.is_current ? "is-current" : ""}>
                <th scope="row">
                  {exactly(row.idle_s)} {row.is_current && <span className="tag good">now</span>}
                </th>
                <td className="right">{count(row.cold_starts)}</td>
                <td className="right">
                  {time(row.waited_s)}
                  <br />
                  <span className="small muted">
                    {row.is_current ? `${count(row.held)} requests` : signed(row.more_waited_s, "time")}
                  </span>
                </td>
                <td>
                  <Bar share={row.share} />
                  {brief(row.idle_device_s)}{" "}
                  {!row.is_current && <span className="small muted">{signed(row.more_idle_device_s, "time")}</span>}
                </td>
                <td className="right">
                  {!row.is_current && (
                    <button
                      className="button"
                      type="button"
                      disabled={!may}
                      title={why}
                      aria-label={`Apply an idle time of ${exactly(row.idle_s)}`}
                      onClick={() => setApplying(row)}
                    >
                      Apply
                    </button>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <Notes notes={advice.notes} />
      {applying && <ApplyIdle name={name} row={applying} onClose={() => setApplying(null)} onApplied={onApplied} />}
    </>
  );
}

function Notes({ notes }: { notes: readonly string[] }) {
  return (
    <ul className="panel-body small muted advice-notes">
      {notes.map((note) => (
        <li key={note}>{note}</li>
      ))}
    </ul>
  );
}

function Bar({ share }: { share: number }) {
  return (
    <svg
      className="advice-bar"
      viewBox="0 0 100 6"
      width="100%"
      height="6"
      preserveAspectRatio="none"
      aria-hidden="true"
    >
      <rect width={Math.max(share > 0 ? 0.6 : 0, share * 100)} height="6" />
    </svg>
  );
}
