import { memo, useId, useMemo, useState } from "react";
import type { FunctionDetail } from "../../api/types.ts";
import { CopyText } from "../../design/CopyText.tsx";
import { millis } from "../../design/format.ts";
import { useFunction } from "../../store/hooks.ts";
import { Options, waitOf, type Chosen } from "../Options.tsx";
import "../playground.css";
import { bodyOf, inputsOf, textsOfInputs, type Given, type InputField } from "../schema.ts";
import { SchemaFields } from "../SchemaFields.tsx";
import type { Fault } from "../tensor.ts";
import { Waiting } from "../Waiting.tsx";
import { AnswerView } from "./AnswerView.tsx";
import { callOf, curlOf, hasBody, METHODS, readyOf, type Draft, type Faults, type Method, type Ready } from "./request.ts";
import { useExchange } from "./useExchange.ts";

/** The deploy's first sample as the first request, else the page at "/". */
export function draftOf(detail: Pick<FunctionDetail, "server">): Draft {
  const sample = detail.server?.samples[0];
  const isKnown = METHODS.includes(sample?.method as Method);
  // A body that begins with "@" is a file of the bundle, which the page does not have.
  if (!sample || !isKnown || sample.body.startsWith("@")) return { method: "GET", path: "/", headers: "", body: "" };
  const headers = Object.entries(sample.headers ?? {}).map(([name, value]) => `${name}: ${value}`);
  return { method: sample.method as Method, path: sample.path, headers: headers.join("\n"), body: sample.body };
}

/** Form that sends any request to a server function, and shows its answer while it arrives. */
export const ServerPlayground = memo(function ServerPlayground({
  detail,
  whyNot,
}: {
  detail: FunctionDetail;
  whyNot: string;
}) {
  const fields = useMemo(() => (detail.predict === undefined ? null : inputsOf(detail)), [detail]);
  const [draft, setDraft] = useState<Draft>(() => draftOf(detail));
  const [faults, setFaults] = useState<Faults>({});
  const [given, setGiven] = useState<Given>(() => givenOf(detail, fields ?? []));
  const [unfit, setUnfit] = useState<ReadonlyMap<string, Fault>>(new Map());
  const [isRaw, setIsRaw] = useState(false);
  const [chosen, setChosen] = useState<Chosen>({ wait: "", priority: "normal" });
  const { seen, isOut, send, abort } = useExchange(detail.name);
  const line = useFunction(detail.name);
  const wait_s = waitOf(chosen.wait);
  const made = fields && !isRaw ? bodyOf(fields, given) : null;
  const ready: Ready | { faults: Faults } | { unfit: ReadonlyMap<string, Fault> } =
    made === null
      ? readyOf(detail.name, draft, wait_s, chosen.priority)
      : "faults" in made
        ? { unfit: made.faults }
        : callOf(detail.name, made.body, wait_s, chosen.priority);
  const isOpen = seen !== null && seen.phase !== "waiting";

  return (
    <section className="panel" aria-labelledby="playground-title">
      <div className="panel-head play-head">
        <h2 id="playground-title">Playground</h2>
        <span className="spread" />
        {fields && <Ways isRaw={isRaw} onRaw={setIsRaw} />}
      </div>
      <form
        className="panel-body play"
        onSubmit={(event) => {
          event.preventDefault();
          if (isOut || whyNot) return;
          if ("faults" in ready) return setFaults(ready.faults);
          if ("unfit" in ready) return setUnfit(ready.unfit);
          setFaults({});
          setUnfit(new Map());
          void send(ready);
        }}
      >
        {detail.predict && <code className="play-predict">{detail.predict}</code>}
        {detail.no_schema && <p className="small muted">No form: {detail.no_schema}</p>}
        {fields && !isRaw ? (
          <SchemaFields fields={fields} given={given} faults={unfit} onGiven={setGiven} />
        ) : (
          <Fields draft={draft} faults={faults} onDraft={setDraft} />
        )}
        <div className="row-of">
          <button className="button primary" type="submit" disabled={isOut || whyNot !== ""} title={whyNot}>
            Send
          </button>
          {isOut && (
            <button className="button" type="button" onClick={abort}>
              Abort
            </button>
          )}
          <span className="spread" />
          <Options chosen={chosen} usual_s={detail.limits.wait_s} onChange={setChosen} />
        </div>
        {whyNot && <p className="small muted">{whyNot}</p>}
      </form>
      {"url" in ready && <CopyText text={curlOf(ready, location.origin)} label="The request with curl" />}
      {isOut && !isOpen && <Waiting line={line} />}
      <p className="unseen" role="status">
        {!isOut && seen && `${seen.status || "no answer"} after ${millis(seen.ms)}`}
      </p>
      {isOpen && <AnswerView seen={seen} />}
    </section>
  );
});

function Ways({ isRaw, onRaw }: { isRaw: boolean; onRaw: (isRaw: boolean) => void }) {
  return (
    <div className="play-ways" role="group" aria-label="How the request is made">
      {[false, true].map((one) => (
        <button key={String(one)} type="button" aria-pressed={one === isRaw} onClick={() => onRaw(one)}>
          {one ? "Request" : "Form"}
        </button>
      ))}
    </div>
  );
}

/** The values of the deploy's sample, as far as the page has them. */
export function givenOf(detail: Pick<FunctionDetail, "server">, fields: InputField[]): Given {
  const body = detail.server?.samples[0]?.body ?? "";
  try {
    const { inputs } = JSON.parse(body) as { inputs?: Record<string, unknown> };
    return { texts: textsOfInputs(fields, inputs ?? {}), files: {} };
  } catch {
    return { texts: {}, files: {} };
  }
}

function Fields({ draft, faults, onDraft }: { draft: Draft; faults: Faults; onDraft: (draft: Draft) => void }) {
  const id = useId();
  return (
    <>
      <div className="play-request">
        <div>
          <label className="label" htmlFor={`${id}-method`}>
            Method
          </label>
          <select
            id={`${id}-method`}
            className="field"
            value={draft.method}
            onChange={(event) => onDraft({ ...draft, method: event.target.value as Method })}
          >
            {METHODS.map((method) => (
              <option key={method}>{method}</option>
            ))}
          </select>
        </div>
        <div className="play-field">
          <label className="label" htmlFor={`${id}-path`}>
            Path and query
          </label>
          <input
            id={`${id}-path`}
            className="field mono"
            value={draft.path}
            spellCheck={false}
            autoComplete="off"
            autoCapitalize="off"
            aria-invalid={faults.path ? true : undefined}
            aria-describedby={`${id}-path-fault`}
            onChange={(event) => onDraft({ ...draft, path: event.target.value })}
          />
        </div>
      </div>
      {faults.path && (
        <p id={`${id}-path-fault`} className="play-fault" role="alert">
          {faults.path}
        </p>
      )}
      <div className="play-field">
        <label className="label" htmlFor={`${id}-headers`}>
          Headers <span className="muted">one Name: value per line</span>
        </label>
        <textarea
          id={`${id}-headers`}
          className="field play-text"
          rows={2}
          spellCheck={false}
          value={draft.headers}
          aria-invalid={faults.headers ? true : undefined}
          aria-describedby={`${id}-headers-fault`}
          onChange={(event) => onDraft({ ...draft, headers: event.target.value })}
        />
        {faults.headers && (
          <p id={`${id}-headers-fault`} className="play-fault" role="alert">
            {faults.headers}
          </p>
        )}
      </div>
      {hasBody(draft.method) && (
        <div className="play-field">
          <label className="label" htmlFor={`${id}-body`}>
            Body
          </label>
          <textarea
            id={`${id}-body`}
            className="field play-text"
            rows={5}
            spellCheck={false}
            value={draft.body}
            onChange={(event) => onDraft({ ...draft, body: event.target.value })}
          />
        </div>
      )}
    </>
  );
}
