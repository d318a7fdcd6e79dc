import { Dialog } from "../design/Dialog.tsx";
import { plural } from "../design/format.ts";
import { useFunction } from "../store/hooks.ts";

/** Confirmation for a function with requests: these are finished, but the next one waits for a cold start. */
export function SleepDialog({ name, onClose, onSleep }: { name: string; onClose: () => void; onSleep: () => void }) {
  const line = useFunction(name);
  return (
    <Dialog title={`Put ${name} to sleep?`} onClose={onClose}>
      <p>
        It has {plural(line?.in_flight ?? 0, "request")} in flight and {line?.held ?? 0} held. Busy replicas finish and stay; idle ones
        go, and the next request may wait for a cold start.
      </p>
      <div className="dialog-buttons">
        <button type="button" className="button" onClick={onClose}>
          Leave it
        </button>
        <button
          type="button"
          className="button primary"
          onClick={() => {
            onClose();
            onSleep();
          }}
        >
          Put to sleep
        </button>
      </div>
    </Dialog>
  );
}
