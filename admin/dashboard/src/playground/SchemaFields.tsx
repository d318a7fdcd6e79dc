import { useId } from "react";
import { FileInput } from "./FileInput.tsx";
import type { FileField } from "./form.ts";
import { own, type Given, type InputField } from "./schema.ts";
import { FaultText, TensorInput } from "./TensorInput.tsx";
import type { Fault } from "./tensor.ts";

/** One field for each input of a Python function. */
export function SchemaFields({
  fields,
  given,
  faults,
  onGiven,
}: {
  fields: InputField[];
  given: Given;
  faults: ReadonlyMap<string, Fault>;
  onGiven: (given: Given) => void;
}) {
  const first = fields.find(({ kind }) => kind === "file")?.name;
  if (!fields.length) return <p className="small muted">This function takes no inputs.</p>;
  return fields.map((field) => {
    const fault = faults.get(field.name);
    const onText = (text: string) => onGiven({ ...given, texts: { ...given.texts, [field.name]: text } });
    if (field.kind === "file") {
      const onFiles = (files: File[]) => onGiven({ ...given, files: { ...given.files, [field.name]: files } });
      const [file = null, ...others] = own(given.files, field.name) ?? [];
      return (
        <FileInput
          key={field.name}
          field={fileFieldOf(field)}
          file={file}
          fault={fault}
          others={others}
          onFile={(one) => onFiles([one])}
          {...(field.isMany ? { onFiles } : {})}
          takesPaste={field.name === first}
        />
      );
    }
    const text = own(given.texts, field.name) ?? "";
    if (field.kind === "json" || field.kind === "any") {
      const shown = { name: field.name, kind: "json" as const, spec: null, hint: field.hint };
      return <TensorInput key={field.name} field={shown} text={text} fault={fault} onText={onText} />;
    }
    return <ValueInput key={field.name} field={field} text={text} fault={fault} onText={onText} />;
  });
}

function ValueInput({
  field,
  text,
  fault,
  onText,
}: {
  field: InputField;
  text: string;
  fault: Fault | undefined;
  onText: (text: string) => void;
}) {
  const id = useId();
  const shared = {
    id,
    value: text,
    "aria-invalid": fault !== undefined,
    "aria-describedby": `${id}-fault`,
  };
  const choices = field.kind === "boolean" ? [true, false] : field.choices;
  return (
    <div className="play-field">
      <label className="label" htmlFor={id}>
        <span className="mono">{field.name}</span> <span className="muted">{field.hint}</span>
      </label>
      {choices.length > 0 ? (
        <select {...shared} className="field play-choice" onChange={(event) => onText(event.target.value)}>
          <option value="">{field.isRequired ? "choose" : "not given"}</option>
          {choices.map((one) => (
            <option key={JSON.stringify(one)} value={JSON.stringify(one)}>
              {typeof one === "string" ? one : JSON.stringify(one)}
            </option>
          ))}
        </select>
      ) : field.kind === "text" ? (
        <textarea {...shared} className="field play-text" rows={2} onChange={(event) => onText(event.target.value)} />
      ) : (
        <input
          {...shared}
          className="field play-choice mono"
          inputMode={field.kind === "integer" ? "numeric" : "decimal"}
          autoComplete="off"
          onChange={(event) => onText(event.target.value)}
        />
      )}
      <FaultText id={`${id}-fault`} fault={fault} />
    </div>
  );
}

function fileFieldOf({ name, media, hint }: InputField): FileField {
  const family = media.split("/")[0];
  const kind = family === "image" || family === "audio" ? family : "bytes";
  return { name, kind, accept: media, type: "application/octet-stream", hint };
}
