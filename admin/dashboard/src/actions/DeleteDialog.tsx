import { useId, useState, type FormEvent } from "react";
import { Dialog } from "../design/Dialog.tsx";
import { useSite } from "../store/hooks.ts";
import * as actions from "./actions.ts";
import { useActions } from "./ActionsHost.tsx";

/** Deletes a function permanently, after its name was typed. */
export function DeleteDialog({ name, onClose }: { name: string; onClose: () => void }) {
  const { client } = useSite();
  const { run } = useActions();
  const [typed, setTyped] = useState("");
  const id = useId();
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (typed !== name) return;
    onClose();
    void run(`Deleting ${name}`, async () => {
      await actions.remove(client, name);
      return `${name} is deleted`;
    });
  };
  return (
    <Dialog title={`Delete ${name}?`} onClose={onClose}>
      <form className="stack" onSubmit={submit}>
        <p>All revisions are deleted. Running requests finish; held requests are refused. This cannot be undone.</p>
        <div>
          <label className="label" htmlFor={id}>
            Type <strong className="mono">{name}</strong> to go on
          </label>
          <input
            id={id}
            className="field mono"
            autoComplete="off"
            spellCheck={false}
            value={typed}
            onChange={(event) => setTyped(event.target.value)}
          />
        </div>
        <div className="dialog-buttons">
          <button type="button" className="button" onClick={onClose}>
            Leave it
          </button>
          <button type="submit" className="button danger primary" disabled={typed !== name}>
            Delete
          </button>
        </div>
      </form>
    </Dialog>
  );
}
