import { memo, useCallback, useMemo, useState } from "react";
import type { FunctionDetail } from "../api/types.ts";
import { ADMIN, functionPath } from "../api/client.ts";
import { problemOf, wordsOf } from "../api/problem.ts";
import { bytes, clockTime, millis } from "../design/format.ts";
import { useFunction, useSite } from "../store/hooks.ts";
import type { Outcome } from "./call.ts";
import { FileInput } from "./FileInput.tsx";
import { fileBody, formOf, textBody, textsOf, type Built, type Form } from "./form.ts";
import { Options, waitOf, type Chosen } from "./Options.tsx";
import { OutcomeView } from "./OutcomeView.tsx";
import "./playground.css";
import { TensorInput } from "./TensorInput.tsx";
import type { Fault } from "./tensor.ts";
import { useCalls, type Call } from "./useCalls.ts";
import { Waiting } from "./Waiting.tsx";

type Way = "file" | "fields" | "raw";
interface Draft {
  way: Way;
  texts: Record<string, string>;
  file: File | null;
  raw: { type: string; text: string };
}

/** Maximum text that is validated at every keystroke; longer text is validated when it is sent. */
const LIVE_MAX = 50_000;
/** Maximum text that the page can edit smoothly. */
const TEXT_MAX = 2_000_000;

/** Form, made from the signature, that calls the function. */
export const Playground = memo(function Playground({ detail, whyNot }: { detail: FunctionDetail; whyNot: string }) {
  const form = useMemo(() => formOf(detail), [detail.signature, detail.inputs]);
  const [draft, setDraft] = useState<Draft>({
    way: form.file ? "file" : "fields",
    texts: {},
    file: null,
    raw: { type: "application/json", text: "" },
  });
  const [faults, setFaults] = useState<ReadonlyMap<string, Fault>>(new Map());
  const [chosen, setChosen] = useState<Chosen>({ wait: "", priority: "normal" });
  const [picked, setPicked] = useState<number | null>(null);
  const { history, isOut, call, cancel } = useCalls(detail.name);
  const sample = useSample(detail.name, form, (filled) => {
    setDraft((before) => ({ ...before, ...filled }));
    setFaults(new Map());
  });
  const line = useFunction(detail.name);

  const send = async () => {
    const built = bodyOf(form, draft, detail.limits.body_mib);
    if ("faults" in built) return setFaults(built.faults);
    setFaults(new Map());
    setPicked(null);
    const outcome = await call({ body: built.body, wait_s: waitOf(chosen.wait), priority: chosen.priority });
    if (outcome) setFaults(faultsOf(outcome));
  };
  const check = () => {
    if (draft.way !== "fields" || Object.values(draft.texts).join("").length > LIVE_MAX) return;
    const built = textBody(
      form.texts.filter(({ name }) => draft.texts[name]?.trim()),
      draft.texts,
    );
    setFaults("faults" in built ? built.faults : new Map());
  };
  const shown = history.find(({ n }) => n === picked) ?? history[0];

  return (
    <section className="panel" aria-labelledby="playground-title">
      <div className="panel-head play-head">
        <h2 id="playground-title">Playground</h2>
        <span className="spread" />
        <Ways form={form} way={draft.way} onWay={(way) => setDraft({ ...draft, way })} />
      </div>
      <form
        className="panel-body play"
        onSubmit={(event) => {
          event.preventDefault();
          if (!isOut && !whyNot) void send();
        }}
      >
        <Fields form={form} draft={draft} faults={faults} onDraft={setDraft} onLeave={check} />
        <div className="row-of">
          <button className="button primary" type="submit" disabled={isOut || whyNot !== ""} title={whyNot}>
            Invoke
          </button>
          {isOut && (
            <button className="button" type="button" onClick={cancel}>
              Cancel
            </button>
          )}
          <button className="button" type="button" disabled={sample.isAsked} onClick={() => void sample.fill()}>
            {detail.sample === "manifest" ? "Sample" : "Zeros"}
          </button>
          <span className="spread" />
          <Options chosen={chosen} usual_s={detail.limits.wait_s} onChange={setChosen} />
        </div>
        {whyNot && <p className="small muted">{whyNot}</p>}
        {sample.why && (
          <p className="note warn" role="status">
            {sample.why}
          </p>
        )}
      </form>
      {isOut && <Waiting line={line} />}
      <p className="unseen" role="status">
        {!isOut && shown && `${shown.outcome.status || "no answer"} after ${millis(shown.outcome.ms)}`}
      </p>
      {!isOut && shown && <OutcomeView key={shown.n} outcome={shown.outcome} />}
      {history.length > 1 && <History calls={history} picked={shown?.n ?? null} onPick={setPicked} />}
    </section>
  );
});

const WORDS: Record<Way, string> = { file: "File", fields: "JSON", raw: "Raw" };

function Ways({ form, way, onWay }: { form: Form; way: Way; onWay: (way: Way) => void }) {
  const ways: Way[] = [
    ...(form.file ? (["file"] as const) : []),
    ...(form.texts.length ? (["fields"] as const) : []),
    "raw",
  ];
  return (
    <div className="play-ways" role="group" aria-label="How the body is made">
      {ways.map((one) => (
        <button key={one} type="button" aria-pressed={one === way} onClick={() => onWay(one)}>
          {WORDS[one]}
        </button>
      ))}
    </div>
  );
}

function Fields({
  form,
  draft,
  faults,
  onDraft,
  onLeave,
}: {
  form: Form;
  draft: Draft;
  faults: ReadonlyMap<string, Fault>;
  onDraft: (draft: Draft) => void;
  onLeave: () => void;
}) {
  if (draft.way === "raw") return <RawFields draft={draft} onDraft={onDraft} />;
  if (draft.way === "file" && form.file) {
    const { file } = form;
    return (
      <FileInput
        field={file}
        file={draft.file}
        fault={faults.get(file.name)}
        onFile={(one) => onDraft({ ...draft, file: one })}
      />
    );
  }
  return form.texts.map((field) => (
    <TensorInput
      key={field.name}
      field={field}
      text={draft.texts[field.name] ?? ""}
      fault={faults.get(field.name)}
      onText={(text) => onDraft({ ...draft, texts: { ...draft.texts, [field.name]: text } })}
      onLeave={onLeave}
    />
  ));
}

function RawFields({ draft, onDraft }: { draft: Draft; onDraft: (draft: Draft) => void }) {
  const { raw } = draft;
  return (
    <div className="play-field">
      <label className="label">
        Content-Type
        <input
          className="field play-type"
          value={raw.type}
          spellCheck={false}
          onChange={(event) => onDraft({ ...draft, raw: { ...raw, type: event.target.value } })}
        />
      </label>
      <label className="label">
        Body
        <textarea
          className="field play-text"
          rows={6}
          spellCheck={false}
          value={raw.text}
          onChange={(event) => onDraft({ ...draft, raw: { ...raw, text: event.target.value } })}
        />
      </label>
    </div>
  );
}

function History({
  calls,
  picked,
  onPick,
}: {
  calls: readonly Call[];
  picked: number | null;
  onPick: (n: number) => void;
}) {
  return (
    <ol className="play-history" aria-label="The last calls of this page">
      {calls.map(({ n, at_s, outcome }) => (
        <li key={n}>
          <button type="button" aria-pressed={n === picked} onClick={() => onPick(n)}>
            <span className={outcome.problem ? "bad" : "good"}>{outcome.status || "–"}</span> {millis(outcome.ms)}{" "}
            <span className="muted">
              {outcome.receipt?.cold ? "cold" : ""} {clockTime(at_s)}
            </span>
          </button>
        </li>
      ))}
    </ol>
  );
}

function bodyOf(form: Form, draft: Draft, body_mib: number): Built {
  if (draft.way === "raw") return { body: { type: draft.raw.type.trim(), content: draft.raw.text } };
  if (draft.way === "fields" || !form.file) return textBody(form.texts, draft.texts);
  const { name } = form.file;
  if (!draft.file) return { faults: new Map([[name, { expected: "a file", got: "none" }]]) };
  if (draft.file.size > body_mib * 2 ** 20) {
    const got = `${(draft.file.size / 2 ** 20).toFixed(1)} MiB`;
    return { faults: new Map([[name, { expected: `at most ${body_mib} MiB`, got }]]) };
  }
  return { body: fileBody(form.file, draft.file) };
}

/** The server's error for one input, shown beside that input as well. */
function faultsOf({ problem }: Outcome): Map<string, Fault> {
  const { input, expected, got } = problem?.more ?? {};
  const isTold = [input, expected, got].every((text) => typeof text === "string");
  return new Map(isTold ? [[String(input), { expected: String(expected), got: String(got) }]] : []);
}

function useSample(name: string, form: Form, onFilled: (filled: Partial<Draft>) => void) {
  const { client } = useSite();
  const [isAsked, setIsAsked] = useState(false);
  const [why, setWhy] = useState("");
  const fill = useCallback(async () => {
    setIsAsked(true);
    setWhy("");
    try {
      const response = await client.send(`${ADMIN}${functionPath(name)}/sample`);
      if (!response.ok) throw problemOf(response.status, await response.text());
      const type = response.headers.get("Content-Type") ?? "";
      onFilled(await draftOf(form, type, response));
    } catch (error) {
      setWhy(wordsOf(error));
    } finally {
      setIsAsked(false);
    }
  }, [client, name, form, onFilled]);
  return { fill, isAsked, why };
}

async function draftOf(form: Form, type: string, response: Response): Promise<Partial<Draft>> {
  if (type.startsWith("application/json") && form.texts.length) {
    const text = await response.text();
    if (text.length > TEXT_MAX)
      throw new Error(`the sample has ${bytes(text.length)}, too many to edit here: send it with curl`);
    return { way: "fields", texts: textsOf(form.texts, text) };
  }
  const ending = /^\w+\/(?:x-)?([a-z0-9]+)/.exec(type)?.[1] ?? "bin";
  return {
    way: "file",
    file: new File([await response.blob()], `sample.${ending === "octet" ? "bin" : ending}`, { type }),
  };
}
