import { useState } from "react";
import type { OperationRow } from "../api/types.ts";
import { wordsOf } from "../api/problem.ts";
import { operationPath } from "../api/client.ts";
import { useMayDeploy, useSite } from "../store/hooks.ts";

/** Cancels a running operation; nothing for one that has ended. Its end arrives as an event. */
export function CancelButton({ operation }: { operation: OperationRow }) {
  const { client } = useSite();
  const { may, why } = useMayDeploy();
  const [isAsked, setAsked] = useState(false);
  const [problem, setProblem] = useState("");
  if (operation.state !== "running") return null;
  const cancel = async () => {
    setAsked(true);
    setProblem("");
    try {
      await client.ask(operationPath(operation.id), { method: "DELETE", timeout_ms: null });
    } catch (error) {
      setProblem(wordsOf(error));
      setAsked(false);
    }
  };
  return (
    <>
      {problem && (
        <span className="small bad-text" role="alert">
          {problem}
        </span>
      )}
      <button
        type="button"
        className="button"
        disabled={!may || isAsked}
        title={why}
        aria-label={`Cancel the ${operation.kind} of ${operation.name}`}
        onClick={() => void cancel()}
      >
        {isAsked ? "Cancelling …" : "Cancel"}
      </button>
    </>
  );
}
