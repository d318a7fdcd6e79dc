import { useFetched } from "../api/fetched.ts";
import type { ItemsOperationRow, OperationRow } from "../api/types.ts";
import { ago, span } from "../design/format.ts";
import { functionHash } from "../route/hash.ts";
import { useSecond } from "../store/clock.ts";
import { useConnection, useOperationsVersion, useSite } from "../store/hooks.ts";
import { CancelButton } from "./CancelButton.tsx";
import { detailOf, listed, LOOKS, tookOf } from "./operations.ts";
import "./operations.css";

/** Deploys and rollbacks that run, and the latest that have ended, newest first. */
export function OperationsPage() {
  const { store } = useSite();
  const connection = useConnection();
  useOperationsVersion();
  // Events carry each change; what a break of the stream has hidden is asked for after it.
  const fetched = useFetched<ItemsOperationRow>("/operations", connection.is);
  const items = listed(fetched.data?.items ?? [], store.operations);
  return (
    <div className="page live operations-page">
      <h1>Operations</h1>
      {fetched.problem && <p className="note bad">{fetched.problem.message}</p>}
      <section className="panel" aria-label="Deploys and rollbacks">
        {!items.length && <p className="panel-body muted">{fetched.data ? "None yet: deploys and rollbacks are listed here." : "…"}</p>}
        <ul className="operations">
          {items.map((one) => (
            <OperationLine key={one.id} operation={one} />
          ))}
        </ul>
      </section>
    </div>
  );
}

function OperationLine({ operation }: { operation: OperationRow }) {
  const { store } = useSite();
  useSecond();
  const now_s = store.serverNow_s();
  return (
    <li className="operation">
      <span className={`tag run-state ${LOOKS[operation.state]}`}>{operation.state}</span>
      <span className="operation-what">
        <a href={functionHash(operation.name)}>{operation.name}</a> <span className="muted">{operation.kind}</span>
        <br />
        <span className="mono small muted">{operation.id}</span>
      </span>
      <span className="operation-detail">{detailOf(operation)}</span>
      <span className="muted small operation-times">
        {`${ago(now_s - operation.created_s)},\n`}
        {operation.state === "running" ? "for" : "took"} {span(tookOf(operation, now_s))}
      </span>
      <span className="operation-way">
        <CancelButton operation={operation} />
      </span>
    </li>
  );
}
