import { useEffect, useId, useState, type DragEvent } from "react";
import { bytes } from "../design/format.ts";
import type { FileField } from "./form.ts";
import { FaultText } from "./TensorInput.tsx";
import type { Fault } from "./tensor.ts";

const NOUN = { image: "picture", audio: "sound", bytes: "file" };

/** File input by drop, paste or selection, with a preview of pictures. */
export function FileInput({
  field,
  file,
  fault,
  onFile,
  others = [],
  onFiles,
  takesPaste = true,
}: {
  field: FileField;
  file: File | null;
  fault: Fault | undefined;
  onFile: (file: File) => void;
  /** Further files of a list. */
  others?: File[];
  /** Set if the input is a list; called in place of `onFile`. */
  onFiles?: (files: File[]) => void;
  takesPaste?: boolean;
}) {
  const id = useId();
  const [isOver, setIsOver] = useState(false);
  const take = (files: FileList | null | undefined) => {
    const [first, ...more] = files ?? [];
    if (first && onFiles) onFiles([first, ...more]);
    else if (first) onFile(first);
  };
  const drop = (event: DragEvent) => {
    event.preventDefault();
    setIsOver(false);
    take(event.dataTransfer.files);
  };
  useEffect(() => {
    if (!takesPaste) return;
    // On the whole page: pasting should work without focusing the drop zone first.
    const paste = (event: ClipboardEvent) => {
      const [file] = event.clipboardData?.files ?? [];
      if (file) onFile(file);
    };
    document.addEventListener("paste", paste);
    return () => document.removeEventListener("paste", paste);
  }, [onFile, takesPaste]);
  const over = (event: DragEvent) => {
    event.preventDefault();
    setIsOver(true);
  };
  return (
    <div className="play-field">
      <span className="label">
        <span className="mono">{field.name}</span> <span className="muted">{field.hint}</span>
      </span>
      <div
        className={isOver ? "play-drop is-over" : "play-drop"}
        onDragOver={over}
        onDragLeave={() => setIsOver(false)}
        onDrop={drop}
      >
        {file && field.kind === "image" && <Preview file={file} />}
        <div className="play-drop-words">
          {file ? (
            <span>
              <b>{file.name}</b> <span className="muted">{bytes(file.size)}</span>
              {others.length > 0 && `, ${others.map(({ name }) => name).join(", ")}`}
            </span>
          ) : (
            <span className="muted">Drop, paste or pick a {NOUN[field.kind]}</span>
          )}
          <input
            id={id}
            className="play-pick"
            type="file"
            accept={field.accept}
            multiple={onFiles !== undefined}
            aria-label={`Pick a ${NOUN[field.kind]} for ${field.name}`}
            aria-describedby={`${id}-fault`}
            onChange={(event) => take(event.target.files)}
          />
        </div>
      </div>
      <FaultText id={`${id}-fault`} fault={fault} />
    </div>
  );
}

function Preview({ file }: { file: File }) {
  const [url, setUrl] = useState("");
  useEffect(() => {
    const made = URL.createObjectURL(file);
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [file]);
  return url ? <img className="play-preview" src={url} alt={`What will be sent: ${file.name}`} /> : null;
}
