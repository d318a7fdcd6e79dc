import { useState } from "react";
import { readScaling, scale } from "../actions/actions.ts";
import { wordsOf } from "../api/problem.ts";
import { Dialog } from "../design/Dialog.tsx";
import { useSite } from "../store/hooks.ts";
import type { Compared } from "./advice.ts";
import { exactly, signed } from "./words.ts";

/** Confirmation of a new idle time, with its simulated effect. */
export function ApplyIdle({
  name,
  row,
  onClose,
  onApplied,
}: {
  name: string;
  row: Compared;
  onClose: () => void;
  onApplied: () => void;
}) {
  const { client } = useSite();
  const [isBusy, setIsBusy] = useState(false);
  const [why, setWhy] = useState("");
  const apply = async () => {
    setIsBusy(true);
    setWhy("");
    try {
      const { etag } = await readScaling(client, name);
      await scale(client, name, { idle_s: row.idle_s }, etag);
      onClose();
      onApplied();
    } catch (error) {
      setWhy(wordsOf(error));
      setIsBusy(false);
    }
  };
  return (
    <Dialog title={`Let ${name} idle for ${exactly(row.idle_s)}?`} onClose={onClose} isBusy={isBusy}>
      <p>
        In the last day that would have meant <b>{signed(row.more_idle_device_s, "time")}</b> of idle device time and{" "}
        <b>{signed(row.more_waited_s, "time")}</b> of waiting in all.
      </p>
      {why && (
        <p className="note bad" role="alert">
          {why}
        </p>
      )}
      <div className="dialog-buttons">
        <button className="button" type="button" disabled={isBusy} onClick={onClose}>
          Cancel
        </button>
        <button className="button primary" type="button" disabled={isBusy} onClick={() => void apply()}>
          {isBusy ? "Changing …" : "Apply"}
        </button>
      </div>
    </Dialog>
  );
}
