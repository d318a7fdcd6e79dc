import type { Session } from "../api/types.ts";
import type { Draft, Faults } from "./draft.ts";
import { Check, Field } from "./Field.tsx";

export interface Form {
  draft: Draft;
  faults: Faults;
  onDraft: (part: Partial<Draft>) => void;
}

/** An image, and how its server is started. */
export function ImageFields({ draft, faults, onDraft }: Form) {
  return (
    <>
      <div className="deploy-pair">
        <Field
          title="Image"
          placeholder="nginx:1.27"
          isMono
          value={draft.image}
          fault={faults.image}
          onChange={(image) => onDraft({ image })}
        />
        <Field
          title="Port"
          hint="if it exposes not exactly one"
          inputMode="numeric"
          value={draft.port}
          fault={faults.port}
          onChange={(port) => onDraft({ port })}
        />
      </div>
      <Check isOn={draft.pull} onChange={(pull) => onDraft({ pull })}>
        Pull it even if the engine has it
      </Check>
      <Field
        title="Arguments"
        hint="replace the image's; split as by a shell"
        rows={2}
        value={draft.args}
        fault={faults.args}
        onChange={(args) => onDraft({ args })}
      />
      <Field
        title="Environment"
        hint="one NAME=VALUE per line"
        rows={2}
        value={draft.env}
        fault={faults.env}
        onChange={(env) => onDraft({ env })}
      />
    </>
  );
}

/** What reaches beyond the container: for keys of the scope admin. */
export function ReachFields({ draft, faults, onDraft, session }: Form & { session: Session }) {
  const isAdmin = session.scopes.includes("admin");
  return (
    <details className="deploy-more">
      <summary>Secrets, folders and network</summary>
      <fieldset className="deploy-fields" disabled={!isAdmin}>
        <legend className="note warn">
          {isAdmin
            ? "These give the server more than its own container has. Use them for images that you trust."
            : `These need the scope admin; this key has ${session.scopes.join(", ")}.`}
        </legend>
        <Field
          title="Secrets"
          hint="one VARIABLE=SECRET per line, set before by fnctl secret set"
          rows={2}
          value={draft.secrets}
          fault={faults.secrets}
          onChange={(secrets) => onDraft({ secrets })}
        />
        <Field
          title="Folders"
          hint="one NAME=SOURCE:TARGET per line, :rw at its end to write"
          placeholder="models=/srv/models:/models"
          rows={2}
          value={draft.mounts}
          fault={faults.mounts}
          onChange={(mounts) => onDraft({ mounts })}
        />
        <Check isOn={draft.egress} onChange={(egress) => onDraft({ egress })}>
          Network beyond the calls (egress)
        </Check>
        {draft.egress && (
          <p className="note warn" role="status">
            It reaches whatever this host reaches: its services, the local network, cloud metadata.
          </p>
        )}
      </fieldset>
    </details>
  );
}
