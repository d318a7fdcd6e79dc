import { useEffect, useState, type FormEvent } from "react";
import { functionPath } from "../api/client.ts";
import { wordsOf } from "../api/problem.ts";
import { Dialog } from "../design/Dialog.tsx";
import type { FunctionDetail } from "../api/types.ts";
import { ago } from "../design/format.ts";
import { useSite } from "../store/hooks.ts";
import * as actions from "./actions.ts";
import { useActions } from "./ActionsHost.tsx";

/** Moves the traffic to an earlier revision. `to` is the initial choice. */
export function RollbackDialog({ name, onClose, to = null }: { name: string; onClose: () => void; to?: number | null }) {
  const { client, store } = useSite();
  const { run } = useActions();
  const [shown, setShown] = useState<FunctionDetail | null>(null);
  const [chosen, setChosen] = useState<number | null>(to);
  const [problem, setProblem] = useState("");

  useEffect(() => {
    const leaving = new AbortController();
    client.get<FunctionDetail>(functionPath(name), leaving.signal).then(
      (found) => {
        setShown(found);
        setChosen((now) => now ?? found.previous ?? null);
      },
      (error: unknown) => {
        if (!leaving.signal.aborted) setProblem(wordsOf(error));
      },
    );
    return () => leaving.abort();
  }, [client, name]);

  const others = (shown?.revisions ?? []).filter((one) => !one.traffic).sort((a, b) => b.number - a.number);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (chosen === null) return;
    onClose();
    void run(`Rolling ${name} back to @${chosen}`, async () => {
      await actions.rollback(client, name, chosen);
      return `${name}: the rollback to @${chosen} has begun`;
    });
  };

  return (
    <Dialog title={`Roll ${name} back`} onClose={onClose}>
      <form className="stack" onSubmit={submit}>
        <p>Calls without a revision number go to the chosen revision once it is ready.</p>
        {shown && !others.length && <p className="note">There is no other revision.</p>}
        {others.length > 0 && (
          <fieldset className="choices">
            <legend className="label">Revision</legend>
            {others.map((one) => (
              <label key={one.number} className="choice">
                <input type="radio" name="revision" checked={chosen === one.number} onChange={() => setChosen(one.number)} />
                <span className="mono">@{one.number}</span>
                <span className="muted">
                  made {ago(store.serverNow_s() - one.created_s)}
                  {one.number === shown?.previous ? ", had the traffic before" : ""}
                </span>
              </label>
            ))}
          </fieldset>
        )}
        {problem && (
          <p className="note bad" role="alert">
            {problem}
          </p>
        )}
        <div className="dialog-buttons">
          <button type="button" className="button" onClick={onClose}>
            Leave it
          </button>
          <button type="submit" className="button danger primary" disabled={chosen === null || !others.length}>
            Roll back
          </button>
        </div>
      </form>
    </Dialog>
  );
}
