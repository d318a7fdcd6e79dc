import { useEffect, useId, useState, type FormEvent } from "react";
import { wordsOf } from "../api/problem.ts";
import type { Scaling } from "../api/types.ts";
import { Dialog } from "../design/Dialog.tsx";
import { span } from "../design/format.ts";
import { useSite } from "../store/hooks.ts";
import * as actions from "./actions.ts";
import { useActions } from "./ActionsHost.tsx";
import { changeOf, faultsOf, type ScalingText } from "./scaling.ts";

const FIELDS: readonly { key: keyof Scaling; title: string; hint: string }[] = [
  { key: "min", title: "Minimum replicas", hint: "kept warm without calls" },
  { key: "max", title: "Maximum replicas", hint: "limit under load" },
  { key: "idle_s", title: "Idle time, seconds", hint: "without requests before a replica stops" },
];

/** Form for min, max and idle time. `idle_s` is the initial idle time if not the current one. */
export function ScaleDialog({ name, onClose, idle_s }: { name: string; onClose: () => void; idle_s?: number }) {
  const { client } = useSite();
  const { run } = useActions();
  const [read, setRead] = useState<{ scaling: Scaling; etag: string } | null>(null);
  const [text, setText] = useState<ScalingText>({ min: "", max: "", idle_s: "" });
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  const id = useId();

  useEffect(() => {
    let isGone = false;
    actions.readScaling(client, name).then(
      (found) => {
        if (isGone) return;
        setRead(found);
        const { min, max } = found.scaling;
        setText({ min: String(min), max: String(max), idle_s: String(idle_s ?? found.scaling.idle_s) });
      },
      (error: unknown) => {
        if (!isGone) setProblem(wordsOf(error));
      },
    );
    return () => {
      isGone = true;
    };
  }, [client, name, idle_s]);

  const faults = read ? faultsOf(text) : {};
  const change = read ? changeOf(text, read.scaling) : {};
  const isReady = read !== null && !Object.keys(faults).length && Object.keys(change).length > 0;

  const submit = async (event: FormEvent) => {
    event.preventDefault();
    if (!isReady || isBusy) return;
    setBusy(true);
    setProblem("");
    const went = await run(`Scaling ${name}`, async () => {
      try {
        const now = await actions.scale(client, name, change, read.etag);
        return `${name}: ${now.min} to ${now.max} replicas, idle for ${span(now.idle_s)}`;
      } catch (error) {
        setProblem(wordsOf(error));
        throw error;
      }
    });
    setBusy(false);
    if (went) onClose();
  };

  return (
    <Dialog title={`Scale ${name}`} onClose={onClose} isBusy={isBusy}>
      <form className="stack" onSubmit={(event) => void submit(event)} noValidate>
        {FIELDS.map(({ key, title, hint }) => (
          <div key={key}>
            <label className="label" htmlFor={`${id}${key}`}>
              {title} <span className="faint">{hint}</span>
            </label>
            <input
              id={`${id}${key}`}
              className="field"
              inputMode="decimal"
              autoComplete="off"
              disabled={!read}
              value={text[key]}
              aria-invalid={faults[key] ? true : undefined}
              aria-describedby={`${id}${key}-fault`}
              onChange={(event) => setText({ ...text, [key]: event.target.value })}
            />
            <p id={`${id}${key}-fault`} className="fault small" aria-live="polite">
              {faults[key]}
            </p>
          </div>
        ))}
        {problem && (
          <p className="note bad" role="alert">
            {problem}
          </p>
        )}
        <div className="dialog-buttons">
          <button type="button" className="button" onClick={onClose} disabled={isBusy}>
            Leave it
          </button>
          <button type="submit" className="button primary" disabled={!isReady || isBusy}>
            {isBusy ? "Changing …" : "Change"}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
