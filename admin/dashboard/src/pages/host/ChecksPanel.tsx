import { useEffect, useRef, useState } from "react";
import { wordsOf } from "../../api/problem.ts";
import { definitionOf, type Check, type ItemsCheck } from "../../api/types.ts";
import { StateText } from "../../design/State.tsx";
import { plural } from "../../design/format.ts";
import { useSite } from "../../store/hooks.ts";

/** A login takes at most this long on the server, with all its checks. */
const CHECK_MS = 180_000;

type Outcome = { is: "none" } | { is: "running" } | { is: "failed"; why: string } | { is: "done"; checks: Check[] };

/** Runs all checks of a host on the server and shows their results, with the remedies. */
export function ChecksPanel({ name }: { name: string }) {
  const { client } = useSite();
  const [outcome, setOutcome] = useState<Outcome>({ is: "none" });
  const running = useRef<AbortController | null>(null);
  useEffect(() => () => running.current?.abort(), []);
  const check = async () => {
    const abort = (running.current = new AbortController());
    setOutcome({ is: "running" });
    try {
      const path = `/hosts/${encodeURIComponent(name)}/check`;
      const asking = { method: "POST", signal: abort.signal, timeout_ms: CHECK_MS };
      const { data } = await client.ask<ItemsCheck>(path, asking);
      setOutcome({ is: "done", checks: data.items });
    } catch (error) {
      if (!abort.signal.aborted) setOutcome({ is: "failed", why: wordsOf(error) });
    }
  };
  const isRunning = outcome.is === "running";
  return (
    <section className="panel" aria-labelledby="host-checks-title">
      <div className="panel-head">
        <h2 id="host-checks-title">Checks</h2>
        <span className="muted" role="status">
          {summary(outcome)}
        </span>
        <span className="spread" />
        <button className="button" type="button" onClick={() => void check()} disabled={isRunning}>
          Check
        </button>
      </div>
      {outcome.is === "done" ? (
        <ul className="host-checks" aria-label="Checks">
          {outcome.checks.map((one) => (
            <li key={one.name}>
              <StateText state={one.level === "ok" ? "ready" : "failing"} word={one.level} />
              <span className="host-check-name">{one.name}</span>
              <span className="host-check-found">{one.found}</span>
              {one.todo && <span className="host-check-todo mono">{one.todo}</span>}
            </li>
          ))}
        </ul>
      ) : (
        <p className="panel-body muted">
          {definitionOf(name) === name
            ? "The server checks all that it needs of this host, from its connection to its GPUs."
            : `The server checks its rights in ${definitionOf(name)}, the nodes, and by a Pod what replicas reach.`}
        </p>
      )}
    </section>
  );
}

function summary(outcome: Outcome): string {
  switch (outcome.is) {
    case "none":
      return "";
    case "running":
      return "checking …";
    case "failed":
      return outcome.why;
    case "done": {
      const bad = outcome.checks.filter(({ level }) => level !== "ok").length;
      return bad ? `${bad} of ${plural(outcome.checks.length, "check")} failed` : `${plural(outcome.checks.length, "check")} passed`;
    }
  }
}
