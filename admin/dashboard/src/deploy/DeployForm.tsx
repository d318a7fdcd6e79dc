import { useState, type FormEvent } from "react";
import { useFunction, useMayDeploy, useSite } from "../store/hooks.ts";
import { DEVICES, nameOf, reachesOut, readyOf, type Draft, type Faults, type Ready, type Way } from "./draft.ts";
import { Check, Field } from "./Field.tsx";
import { ImageFields, ReachFields, type Form } from "./ImageFields.tsx";
import { ModelFields } from "./ModelFields.tsx";

const WAYS: readonly { way: Way; title: string }[] = [
  { way: "model", title: "ONNX file" },
  { way: "image", title: "Image" },
];

/** Form of a deploy. Faults are shown from the first try on, and then as they are typed. */
export function DeployForm({
  draft,
  onDraft,
  isRunning,
  onDeploy,
}: {
  draft: Draft;
  onDraft: (part: Partial<Draft>) => void;
  isRunning: boolean;
  onDeploy: (ready: Ready) => void;
}) {
  const { session } = useSite();
  const mayDeploy = useMayDeploy();
  const [isTried, setTried] = useState(false);
  const found = readyOf(draft);
  const faults: Faults = isTried && "faults" in found ? found.faults : {};
  const known = useFunction(nameOf(draft));
  const whyNot = mayDeploy.why || whyNotHere(draft, session.driver, session.scopes) || (isRunning ? "a deploy is running" : "");
  const form: Form = { draft, faults, onDraft };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (whyNot || (known && !draft.isNext)) return setTried(true);
    if ("faults" in found) return setTried(true);
    setTried(false);
    onDeploy(found.ready);
  };
  return (
    <section className="panel" aria-labelledby="deploy-form-title">
      <div className="panel-head">
        <h2 id="deploy-form-title">What to deploy</h2>
        <span className="spread" />
        <div className="play-ways" role="group" aria-label="Source">
          {WAYS.map(({ way, title }) => (
            <button key={way} type="button" aria-pressed={draft.way === way} onClick={() => onDraft({ way })}>
              {title}
            </button>
          ))}
        </div>
      </div>
      <form className="panel-body deploy-fields" onSubmit={submit} noValidate>
        {draft.way === "image" && whyNotDriver(session.driver) && <p className="note warn">{whyNotDriver(session.driver)}</p>}
        {draft.way === "model" ? <ModelFields {...form} /> : <ImageFields {...form} />}
        <Field
          title="Name"
          hint={draft.name.trim() ? "" : "from the file or the image"}
          placeholder={nameOf(draft)}
          value={draft.name}
          fault={faults.name}
          onChange={(name) => onDraft({ name })}
        />
        {known && (
          <div className="note warn deploy-known">
            <p>
              {known.name} exists: calls go to <span className="mono">{known.revision}</span>.
            </p>
            <Check isOn={draft.isNext} onChange={(isNext) => onDraft({ isNext })}>
              Make its next revision
            </Check>
            {draft.isNext && (
              <Check isOn={draft.breaking} onChange={(breaking) => onDraft({ breaking })}>
                Also if that breaks current callers
              </Check>
            )}
            {isTried && !draft.isNext && (
              <p className="fault small" role="alert">
                Choose another name, or let it make the next revision.
              </p>
            )}
          </div>
        )}
        <More {...form} />
        {draft.way === "image" && <ReachFields {...form} session={session} />}
        <div className="row-of">
          <button type="submit" className="button primary" aria-disabled={whyNot ? true : undefined} title={whyNot || undefined}>
            Deploy
            {whyNot && <span className="unseen">: not now, {whyNot}</span>}
          </button>
          {whyNot && <span className="small muted">{whyNot}</span>}
        </div>
      </form>
    </section>
  );
}

/** Settings that most deploys leave as they are. */
function More({ draft, faults, onDraft }: Form) {
  return (
    <details className="deploy-more">
      <summary>Scaling and device</summary>
      <div className="deploy-grid">
        <Field title="Idle time, seconds" inputMode="decimal" placeholder="the server's" value={draft.idle_s} fault={faults.idle_s} onChange={(idle_s) => onDraft({ idle_s })} />
        <Field title="Maximum replicas" inputMode="numeric" placeholder="1" value={draft.max} fault={faults.max} onChange={(max) => onDraft({ max })} />
        <div className="deploy-field">
          <label className="label" htmlFor="deploy-device">
            Device
          </label>
          <select
            id="deploy-device"
            className="field"
            value={draft.device}
            onChange={(event) => onDraft({ device: event.target.value as Draft["device"] })}
          >
            {DEVICES.map((device) => (
              <option key={device} value={device}>
                {device || "default"}
              </option>
            ))}
          </select>
        </div>
        {draft.way === "image" && (
          <>
            <Field title="Concurrency" hint="per replica" inputMode="numeric" value={draft.concurrency} fault={faults.concurrency} onChange={(concurrency) => onDraft({ concurrency })} />
            <Field title="Readiness path" placeholder="/" isMono value={draft.ready} fault={faults.ready} onChange={(ready) => onDraft({ ready })} />
          </>
        )}
      </div>
    </details>
  );
}

const whyNotDriver = (driver: string): string =>
  driver === "process" ? "Images run in containers, and this server starts processes: start fngate with FN_DRIVER=docker." : "";

/** Why this server or key cannot deploy the draft; "" if they can. */
export function whyNotHere(draft: Draft, driver: string, scopes: readonly string[]): string {
  if (draft.way !== "image") return "";
  if (whyNotDriver(driver)) return "this server runs no images";
  if (reachesOut(draft) && !scopes.includes("admin")) return `secrets, folders and egress need the scope admin; this key has ${scopes.join(", ")}`;
  return "";
}
