import { useId } from "react";
import type { Priority } from "./call.ts";

export interface Chosen {
  wait: string;
  priority: Priority;
}

/** Options of a call: wait budget and priority. */
export function Options({
  chosen,
  usual_s,
  onChange,
}: {
  chosen: Chosen;
  usual_s: number;
  onChange: (chosen: Chosen) => void;
}) {
  const id = useId();
  return (
    <>
      <label className="play-option" htmlFor={`${id}-wait`}>
        wait
        <input
          id={`${id}-wait`}
          className="field"
          type="number"
          min={0}
          max={3600}
          step={1}
          placeholder={String(Math.round(usual_s))}
          value={chosen.wait}
          onChange={(event) => onChange({ ...chosen, wait: event.target.value })}
        />
        s
      </label>
      <label className="play-option" htmlFor={`${id}-priority`}>
        priority
        <select
          id={`${id}-priority`}
          className="field"
          value={chosen.priority}
          onChange={(event) => onChange({ ...chosen, priority: event.target.value as Priority })}
        >
          <option>high</option>
          <option>normal</option>
          <option>low</option>
        </select>
      </label>
    </>
  );
}

/** The entered wait in whole seconds; null for none. */
export function waitOf(text: string): number | null {
  return /^\d{1,9}$/.test(text.trim()) ? Number(text) : null;
}
