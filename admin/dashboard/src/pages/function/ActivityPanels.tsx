import type { FailureRow, Why } from "../../api/types.ts";
import { ago, clockTime, count } from "../../design/format.ts";
import { useSecond } from "../../store/clock.ts";
import { useActivity, useSite } from "../../store/hooks.ts";
import { joined } from "./recent.ts";

const MAX = 50;

/** The scheduler's decisions about the function with reasons, newest first. */
export function DecisionsPanel({ name, why }: { name: string; why: Why | null }) {
  const { decisions } = useActivity(name);
  const { store } = useSite();
  useSecond();
  const items = joined<{ at_s: number; text: string }>(why?.decisions ?? [], decisions, decisionKey, MAX);
  return (
    <section className="panel" aria-labelledby="decisions-title">
      <div className="panel-head">
        <h2 id="decisions-title">Decisions</h2>
      </div>
      {why?.blocked && <p className="note warn fn-blocked">{why.blocked}</p>}
      {items.length === 0 ? (
        <p className="panel-body muted">No decisions since the server started.</p>
      ) : (
        <ol className="happenings" tabIndex={0} aria-label="Decisions, newest first">
          {items.map((item) => (
            <li key={decisionKey(item)}>
              <time title={clockTime(item.at_s)}>{ago(store.serverNow_s() - item.at_s)}</time>
              <span>{item.text}</span>
            </li>
          ))}
        </ol>
      )}
    </section>
  );
}

const decisionKey = (item: { at_s: number; text: string }): string => `${item.at_s.toFixed(2)} ${item.text}`;

/** Requests that failed through no fault of the client, newest first. */
export function ErrorsPanel({ errors }: { errors: readonly FailureRow[] }) {
  const { store } = useSite();
  useSecond();
  return (
    <section className="panel" aria-labelledby="errors-title">
      <div className="panel-head">
        <h2 id="errors-title">Errors</h2>
      </div>
      {errors.length === 0 ? (
        <p className="panel-body muted">No errors of the function or the server.</p>
      ) : (
        <ol className="happenings" tabIndex={0} aria-label="Errors, newest first">
          {errors.map((error) => (
            <li key={`${error.at_s} ${error.code} ${error.request_id}`}>
              <time title={clockTime(error.at_s)}>{ago(store.serverNow_s() - error.at_s)}</time>
              <span>
                <b className="error-code">{error.code}</b>{" "}
                {error.count > 1 && <span className="tag">× {count(error.count)}</span>}
                <br />
                {error.detail}
                <br />
                <span className="small muted mono">
                  {[error.revision, error.replica, error.request_id].filter(Boolean).join(" · ")}
                </span>
              </span>
            </li>
          ))}
        </ol>
      )}
    </section>
  );
}
