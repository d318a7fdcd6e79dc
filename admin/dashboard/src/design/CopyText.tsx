import { useState } from "react";

/** Text in a box, with a button that copies it. */
export function CopyText({ text, label }: { text: string; label: string }) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setSaid("copied");
    } catch {
      // The clipboard is available only over https or on localhost.
      setSaid("select the text and copy it");
    }
  };
  return (
    <div className="copy-text">
      <pre tabIndex={0} role="region" aria-label={label}>
        {text}
      </pre>
      <button className="button" type="button" onClick={() => void copy()}>
        Copy
      </button>
      <span className="small muted" role="status">
        {said}
      </span>
    </div>
  );
}
