import type { OperationRow } from "../api/types.ts";
import { logOf } from "../deploy/refusal.ts";
import { span } from "../design/format.ts";
import { useSecond } from "../store/clock.ts";
import { useSite } from "../store/hooks.ts";
import { CancelButton } from "./CancelButton.tsx";
import { detailOf, LOOKS, tookOf } from "./operations.ts";
import "./operations.css";

/** The operation of a function, on its page: what it does or why it failed, and a button that cancels it. */
export function OperationNote({ operation }: { operation: OperationRow }) {
  const { store } = useSite();
  useSecond();
  const log = logOf(operation.error);
  return (
    <section className="panel operation-note" aria-label={`The ${operation.kind} of ${operation.name}`}>
      <span className={`tag run-state ${LOOKS[operation.state]}`} role="status">
        {operation.kind} {operation.state}
      </span>
      <span className="operation-detail">{detailOf(operation)}</span>
      <span className="muted small">{span(tookOf(operation, store.serverNow_s()))}</span>
      <CancelButton operation={operation} />
      {log.length > 0 && (
        <pre className="operation-log small" tabIndex={0} role="region" aria-label="The last lines that it printed">
          {log.join("\n")}
        </pre>
      )}
    </section>
  );
}
