import { useState } from "react";
import { RollbackDialog } from "../../actions/RollbackDialog.tsx";
import type { OperationRow, Session, Why } from "../../api/types.ts";
import { LogPanel } from "../../logs/LogPanel.tsx";
import { OperationNote } from "../../operations/OperationNote.tsx";
import { operationOf } from "../../operations/operations.ts";
import { Playground } from "../../playground/Playground.tsx";
import { ServerPlayground } from "../../playground/server/ServerPlayground.tsx";
import { ColdStarts } from "../../receipts/ColdStarts.tsx";
import { useConnection, useFunction, useMayDeploy, useNamesVersion, useOperationsVersion, useSite } from "../../store/hooks.ts";
import { AdvicePanel } from "../../timeline/AdvicePanel.tsx";
import { FunctionTimelinePanel } from "../../timeline/FunctionTimelinePanel.tsx";
import { DecisionsPanel, ErrorsPanel } from "./ActivityPanels.tsx";
import { BuildPanel } from "./BuildPanel.tsx";
import { ConnectionsPanel } from "./ConnectionsPanel.tsx";
import { FunctionActions } from "./FunctionActions.tsx";
import { Header } from "./Header.tsx";
import { PrecisionPanel } from "./PrecisionPanel.tsx";
import { ReplicasPanel } from "./ReplicasPanel.tsx";
import { RevisionsPanel } from "./RevisionsPanel.tsx";
import { ServerPanel } from "./ServerPanel.tsx";
import { SettingsPanel } from "./SettingsPanel.tsx";
import { SignaturePanel } from "./SignaturePanel.tsx";
import { UsagePanel } from "./UsagePanel.tsx";
import { useFunctionData } from "./useFunctionData.ts";
import "./function.css";

/** One function: live state, history, settings, and a form to call it. */
export function FunctionPage({ name }: { name: string; query: URLSearchParams }) {
  const line = useFunction(name);
  const { session } = useSite();
  const { detail, why, errors, starts } = useFunctionData(name, line);
  const [to, setTo] = useState<number | null>(null);
  const mayDeploy = useMayDeploy();
  const operation = useOperation(name, why);
  if (!line) return <Missing name={name} problem={detail.problem?.message ?? ""} why={why} operation={operation} />;
  const known = detail.data;
  const Form = known?.server ? ServerPlayground : Playground;
  return (
    <div className="page live fn-page">
      <nav aria-label="Back" className="small">
        <a href="#/">← All functions</a>
      </nav>
      <Header line={line} actions={<FunctionActions line={line} revisions={known?.revisions.length ?? null} />} />
      {operation?.state === "running" && <OperationNote operation={operation} />}
      {detail.problem && <p className={known ? "note warn" : "note bad"}>{detail.problem.message}</p>}
      <div className="fn-columns">
        <div className="fn-column">
          {known && <Form detail={known} whyNot={whyNotInvoke(session, name)} />}
          <section className="panel" aria-labelledby="starts-title">
            <div className="panel-head">
              <h2 id="starts-title">Cold starts</h2>
            </div>
            <ColdStarts starts={starts} table={known?.cold_starts ?? []} />
          </section>
          <LogPanel name={name} />
          <FunctionTimelinePanel name={name} version={`${line.state} ${line.ready}`} />
          <AdvicePanel name={name} />
        </div>
        <div className="fn-column fn-side">
          {known?.server && <ConnectionsPanel line={line} detail={known} why={why} />}
          {known?.server && <UsagePanel name={name} />}
          <ReplicasPanel name={name} />
          {line.build && <BuildPanel name={name} line={line.build} builds={known?.builds ?? []} />}
          <DecisionsPanel name={name} why={why} />
          <ErrorsPanel errors={errors} />
          {known && (known.server ? <ServerPanel detail={known} server={known.server} /> : <SignaturePanel detail={known} />)}
          {known && <SettingsPanel detail={known} line={line} />}
        </div>
      </div>
      {known?.precision && <PrecisionPanel report={known.precision} />}
      {known && <RevisionsPanel detail={known} whyNot={mayDeploy.why} onRollback={setTo} />}
      {to !== null && <RollbackDialog name={name} to={to} onClose={() => setTo(null)} />}
    </div>
  );
}

/** The operation of the function that runs, or of one without a revision the first deploy, in its latest state. */
function useOperation(name: string, why: Why | null): OperationRow | null {
  const { store } = useSite();
  useOperationsVersion();
  return operationOf(name, why?.operation ?? null, store.operations);
}

/** Of a function without a revision, by the state of its operation. */
const NOT_YET = {
  running: "It is not deployed yet: its first deploy is running.",
  done: "Its deploy is done.",
  failed: "It is not deployed: its deploy failed.",
  cancelled: "It is not deployed: its deploy was cancelled.",
} as const;

interface NotThere {
  name: string;
  problem: string;
  why: Why | null;
  operation: OperationRow | null;
}

/** Unknown function, or one whose first deploy runs or has failed. Before a complete snapshot it may still appear. */
function Missing({ name, problem, why, operation }: NotThere) {
  const { store } = useSite();
  const connection = useConnection();
  useNamesVersion();
  const isKnown = store.isWhole && connection.is === "live";
  return (
    <div className="page live">
      <nav aria-label="Back" className="small">
        <a href="#/">← All functions</a>
      </nav>
      <h1>{name}</h1>
      <p className="muted" role="status">
        {operation ? NOT_YET[operation.state] : isKnown ? problem || "There is no function with this name." : "…"}
      </p>
      {operation && <OperationNote operation={operation} />}
      {operation?.state === "running" && <LogPanel name={name} />}
      {why && why.decisions.length > 0 && <DecisionsPanel name={name} why={why} />}
    </div>
  );
}

/** Why this key may not invoke; "" if it may. */
export function whyNotInvoke({ scopes }: Session, name: string): string {
  const may = ["admin", "invoke", `invoke:${name}`].some((scope) => scopes.includes(scope));
  return may ? "" : `this key has ${scopes.join(", ")}; calling ${name} needs the scope invoke`;
}
