import { useId, type ReactNode } from "react";

/** A labelled text field of the form, with its fault below. `rows` makes it a text area. */
export function Field({
  title,
  hint = "",
  value,
  onChange,
  fault,
  placeholder,
  rows,
  isMono = false,
  inputMode,
}: {
  title: string;
  hint?: ReactNode;
  value: string;
  onChange: (value: string) => void;
  fault?: string | undefined;
  placeholder?: string | undefined;
  rows?: number;
  isMono?: boolean;
  inputMode?: "numeric" | "decimal";
}) {
  const id = useId();
  const shared = {
    id,
    value,
    placeholder,
    spellCheck: false,
    autoComplete: "off",
    autoCapitalize: "off",
    "aria-invalid": fault ? (true as const) : undefined,
    "aria-describedby": fault ? `${id}-fault` : undefined,
    onChange: (event: { target: { value: string } }) => onChange(event.target.value),
  };
  return (
    <div className="deploy-field">
      <label className="label" htmlFor={id}>
        {title} {hint && <span className="muted">{hint}</span>}
      </label>
      {rows ? (
        <textarea {...shared} className="field mono deploy-text" rows={rows} />
      ) : (
        <input {...shared} className={isMono ? "field mono" : "field"} inputMode={inputMode} />
      )}
      {fault && (
        <p id={`${id}-fault`} className="fault small" role="alert">
          {fault}
        </p>
      )}
    </div>
  );
}

/** A checkbox with its label. */
export function Check({ isOn, onChange, children }: { isOn: boolean; onChange: (isOn: boolean) => void; children: ReactNode }) {
  return (
    <label className="deploy-check">
      <input type="checkbox" checked={isOn} onChange={(event) => onChange(event.target.checked)} />
      <span>{children}</span>
    </label>
  );
}
