import { useEffect, useRef } from "react";
import type { OperationResult } from "../api/types.ts";
import { mebibytes, millis, span } from "../design/format.ts";
import { functionHash } from "../route/hash.ts";
import { useSecond } from "../store/clock.ts";
import { titleOf, type Step } from "./progress.ts";
import { factsOf, logOf, remedyOf } from "./refusal.ts";
import type { Run } from "./run.ts";

const STATES = { running: "running", done: "done", failed: "refused", cancelled: "cancelled", lost: "not known" } as const;
const LOOKS = { running: "waking", done: "good", failed: "bad", cancelled: "", lost: "waking" } as const;

/** A deploy: its steps as they happen, then its result or the whole reason of its refusal. */
export function RunView({ run, onCancel, onDismiss }: { run: Run; onCancel: () => void; onDismiss: () => void }) {
  const isRunning = run.state === "running";
  const box = useRef<HTMLElement>(null);
  // On a phone the form fills the window: the run would begin out of sight.
  useEffect(() => {
    // Some browsers return a promise, which an effect must not.
    void box.current?.scrollIntoView({ block: "nearest" });
  }, [run.state]);
  return (
    <section ref={box} className="panel" aria-labelledby="run-title">
      <div className="panel-head">
        <h2 id="run-title">{run.name || "Deploy"}</h2>
        <span className="muted cut">{run.what !== run.name && run.what}</span>
        <span className="spread" />
        <span className={`tag run-state ${LOOKS[run.state]}`} role="status">
          {run.isCancelling && isRunning ? "cancelling" : STATES[run.state]}
        </span>
      </div>
      <ol className="panel-body run-steps" aria-label="Steps">
        {run.steps.map((step, at) => (
          <StepLine key={at} step={step} isLast={at === run.steps.length - 1} state={run.state} />
        ))}
        {!run.steps.length && <li className="muted">{isRunning ? "It begins …" : "It ended before this page was opened."}</li>}
      </ol>
      {run.problem && <Refusal run={run} />}
      {run.state === "cancelled" && <p className="panel-body run-end">Nothing was changed.</p>}
      {run.state === "done" && run.result && <Result name={run.name} result={run.result} />}
      <div className="panel-body row-of run-end">
        {isRunning ? (
          <button type="button" className="button" disabled={run.isCancelling} onClick={onCancel}>
            Cancel
          </button>
        ) : (
          <>
            {run.state === "done" && (
              <a className="button primary" href={functionHash(run.name)}>
                To {run.name}
              </a>
            )}
            <button type="button" className="button" onClick={onDismiss}>
              Close
            </button>
          </>
        )}
        {isRunning && run.isSending && <span className="small muted">Keep this tab open until the files are uploaded.</span>}
      </div>
    </section>
  );
}

function StepLine({ step, isLast, state }: { step: Step; isLast: boolean; state: Run["state"] }) {
  const isEndedHere = isLast && (state === "failed" || state === "cancelled" || state === "lost");
  const mark = step.ms === null ? "…" : isEndedHere ? "×" : "✓";
  return (
    <li className={isEndedHere ? "run-step is-bad" : "run-step"}>
      <span aria-hidden="true">{mark}</span>
      <span>
        {titleOf(step)} <span className="muted">{step.text}</span>
        {step.share !== null && step.ms === null && (
          <progress value={step.share} max={1} aria-label={titleOf(step)}>
            {step.text}
          </progress>
        )}
      </span>
      <span className="muted right">{step.ms === null ? <Since step={step} /> : millis(step.ms)}</span>
    </li>
  );
}

function Since({ step }: { step: Step }) {
  useSecond();
  return span((performance.now() - step.began_ms) / 1000);
}

function Refusal({ run }: { run: Run }) {
  const { problem } = run;
  if (!problem) return null;
  const remedy = remedyOf(problem);
  const facts = factsOf(problem);
  const log = logOf(problem.more);
  return (
    <div className="panel-body run-refusal" role="alert">
      <p className="note bad">
        <b>{problem.title || problem.code}</b>
        <br />
        {problem.detail}
      </p>
      {facts.length > 0 && (
        <dl className="run-facts">
          {facts.map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
      )}
      {remedy && <p>{remedy}</p>}
      {log.length > 0 && (
        <pre className="outcome-text" tabIndex={0} role="region" aria-label="The last lines that it printed">
          {log.join("\n")}
        </pre>
      )}
      {run.state === "failed" && <p className="small muted">Nothing was changed.</p>}
      {run.state === "lost" && <p className="small muted">How it ended is not known here: look at the function.</p>}
    </div>
  );
}

function Result({ name, result }: { name: string; result: OperationResult }) {
  const { profile, server } = result;
  const facts: [string, string][] = [
    ["revision", result.revision ?? ""],
    ["calls", result.created ? (result.switch ?? "") : unchanged(result)],
    [server ? "start" : "load", profile ? millis(profile.load_ms) : ""],
    ["memory", profile ? mebibytes(profile.memory_mib) : ""],
    ["batching", server ? "" : (result.batching ?? "")],
    ["image", server?.image?.digest || server?.image?.id || ""],
    ["held", server ? `calls wait up to ${span(server.wait_s)} for a start` : ""],
    ["hidden", server?.hidden?.length ? `${server.hidden.join(", ")}: volumes of the image, empty folders in memory hide what it has there` : ""],
    ["network", server?.network === "egress" ? "egress: whatever this host reaches" : ""],
    ["host", server?.host === "auto" && server.found_host === "loopback" ? "it refuses other names than its own, so it sees its address as Host" : ""],
    ["note", profile?.note ?? ""],
  ];
  return (
    <div className="panel-body run-result">
      <p className="note good">{result.created ? `${result.revision} is deployed.` : `${name} stays at ${result.revision}.`}</p>
      <dl className="run-facts">
        {facts
          .filter(([, value]) => value)
          .map(([key, value]) => (
            <div key={key}>
              <dt>{key}</dt>
              <dd>{value}</dd>
            </div>
          ))}
      </dl>
    </div>
  );
}

function unchanged({ changed = [], revision }: OperationResult): string {
  return changed.length ? `the same files as ${revision}; changed: ${changed.join(", ")}` : `the same files and settings as ${revision}: nothing changed`;
}
