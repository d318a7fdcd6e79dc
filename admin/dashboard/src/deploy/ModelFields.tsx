import { useId, useState, type DragEvent } from "react";
import { bytes } from "../design/format.ts";
import type { Draft, Faults } from "./draft.ts";

/** The model's file by drop or selection, with the files of its external data. */
export function ModelFields({ draft, faults, onDraft }: { draft: Draft; faults: Faults; onDraft: (part: Partial<Draft>) => void }) {
  const id = useId();
  const [isOver, setIsOver] = useState(false);
  const take = (files: FileList | null) => {
    if (files?.length) onDraft({ files: [...files] });
  };
  // The page itself takes a drop anywhere; this box only shows where one is expected.
  const over = (event: DragEvent) => {
    event.preventDefault();
    setIsOver(true);
  };
  return (
    <div className="deploy-field">
      <label className="label" htmlFor={id}>
        Model <span className="muted">an .onnx file; with external data, its files too</span>
      </label>
      <div
        className={isOver ? "deploy-drop is-over" : "deploy-drop"}
        onDragOver={over}
        onDragLeave={() => setIsOver(false)}
        onDrop={() => setIsOver(false)}
      >
        {draft.files.length ? (
          <ul>
            {draft.files.slice(0, 5).map((file, at) => (
              <li key={at}>
                <b>{file.name}</b> <span className="muted">{bytes(file.size)}</span>
              </li>
            ))}
            {draft.files.length > 5 && <li className="muted">and {draft.files.length - 5} more</li>}
          </ul>
        ) : (
          <p className="muted">Drop it anywhere on this page, or choose it.</p>
        )}
        <input
          id={id}
          className="deploy-pick"
          type="file"
          multiple
          // The same file chosen again, after it was changed, would be no change.
          onClick={(event) => (event.currentTarget.value = "")}
          aria-invalid={faults.files ? true : undefined}
          aria-describedby={faults.files ? `${id}-fault` : undefined}
          onChange={(event) => take(event.target.files)}
        />
      </div>
      {faults.files && (
        <p id={`${id}-fault`} className="fault small" role="alert">
          {faults.files}
        </p>
      )}
    </div>
  );
}
