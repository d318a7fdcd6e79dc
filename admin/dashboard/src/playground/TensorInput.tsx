import { useId } from "react";
import type { TextField } from "./form.ts";
import type { Fault } from "./tensor.ts";

/** One input as JSON, with its error. */
export function TensorInput({
  field,
  text,
  fault,
  onText,
  onLeave,
}: {
  field: TextField;
  text: string;
  fault: Fault | undefined;
  onText: (text: string) => void;
  onLeave?: () => void;
}) {
  const id = useId();
  return (
    <div className="play-field">
      <label className="label" htmlFor={id}>
        <span className="mono">{field.name}</span> <span className="muted">{field.hint}</span>
      </label>
      <textarea
        id={id}
        className="field play-text"
        rows={Math.min(12, Math.max(2, text.split("\n", 12).length))}
        spellCheck={false}
        autoComplete="off"
        value={text}
        aria-invalid={fault !== undefined}
        aria-describedby={`${id}-fault`}
        onChange={(event) => onText(event.target.value)}
        onBlur={onLeave}
      />
      <FaultText id={`${id}-fault`} fault={fault} />
    </div>
  );
}

export function FaultText({ id, fault }: { id: string; fault: Fault | undefined }) {
  return (
    <p id={id} className="play-fault" role="status">
      {fault && (
        <>
          expected <b>{fault.expected}</b>, got <b>{fault.got}</b>
        </>
      )}
    </p>
  );
}
