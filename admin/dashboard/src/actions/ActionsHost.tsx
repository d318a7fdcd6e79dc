import { createContext, useCallback, useContext, useMemo, useRef, useState, type ReactNode } from "react";
import { wordsOf } from "../api/problem.ts";
import { plural } from "../design/format.ts";
import { useSite } from "../store/hooks.ts";
import * as actions from "./actions.ts";
import { DeleteDialog } from "./DeleteDialog.tsx";
import { Menu } from "./Menu.tsx";
import { RollbackDialog } from "./RollbackDialog.tsx";
import { ScaleDialog } from "./ScaleDialog.tsx";
import { SleepDialog } from "./SleepDialog.tsx";
import "./actions.css";

export type ActionKind = "warm" | "sleep" | "park" | "unpark" | "scale" | "rollback" | "delete";

interface Asked {
  kind: ActionKind;
  name: string;
}

interface Note {
  id: number;
  text: string;
  is: "pending" | "done" | "failed";
}

export interface Actions {
  /** Run the action, after a confirmation if it disrupts callers. */
  ask(kind: ActionKind, name: string): void;
  /** Run a task and show its progress and result; resolves to whether it succeeded. */
  run(doing: string, work: () => Promise<string>): Promise<boolean>;
  /** Show the menu of a function's actions beside `anchor`. */
  openMenu(name: string, anchor: HTMLElement): void;
}

const NOTES = 4;
const DONE_MS = 6_000;

const ActionsContext = createContext<Actions | null>(null);

export function useActions(): Actions {
  const found = useContext(ActionsContext);
  if (!found) throw new Error("useActions needs an ActionsHost around it");
  return found;
}

/** Runs actions and shows their messages. One host serves all pages, since a row may disappear meanwhile. */
export function ActionsHost({ children }: { children: ReactNode }) {
  const { client, store } = useSite();
  const [asked, setAsked] = useState<Asked | null>(null);
  const [menu, setMenu] = useState<{ name: string; anchor: HTMLElement } | null>(null);
  const [notes, setNotes] = useState<readonly Note[]>([]);
  const made = useRef(0);

  const drop = useCallback((id: number) => setNotes((now) => now.filter((note) => note.id !== id)), []);

  const run = useCallback(
    async (doing: string, work: () => Promise<string>): Promise<boolean> => {
      const id = (made.current += 1);
      const put = (note: Note) => setNotes((now) => [...now.filter((one) => one.id !== id), note].slice(-NOTES));
      put({ id, text: `${doing} …`, is: "pending" });
      try {
        put({ id, text: await work(), is: "done" });
        setTimeout(() => drop(id), DONE_MS);
        return true;
      } catch (error) {
        put({ id, text: `${doing}: ${wordsOf(error)}`, is: "failed" });
        return false;
      }
    },
    [drop],
  );

  const warm = useCallback(
    (name: string) =>
      run(`Waking ${name}`, async () => {
        const { was_warm, took_ms } = await actions.warm(client, name);
        return was_warm ? `${name} was warm already` : `${name} is warm after ${(took_ms / 1000).toFixed(1)} s`;
      }),
    [client, run],
  );

  const sleep = useCallback(
    (name: string) =>
      run(`Putting ${name} to sleep`, async () => {
        const { asked: went, stay } = await actions.sleep(client, name);
        return `${name}: ${plural(went, "replica")} asked to stop${stay ? `, ${stay} stay` : ""}`;
      }),
    [client, run],
  );

  const park = useCallback(
    (name: string) =>
      run(`Parking ${name}`, async () => {
        const { parked, took_ms, reasons } = await actions.park(client, name);
        const more = reasons.length ? `: ${reasons.join("; ")}` : "";
        if (!parked) throw new Error(`no replica is parked${more}`);
        return `${name}: ${plural(parked, "replica")} parked after ${(took_ms / 1000).toFixed(1)} s${more}`;
      }),
    [client, run],
  );

  const unpark = useCallback(
    (name: string) =>
      run(`Waking ${name}`, async () => {
        const { was_warm, took_ms } = await actions.unpark(client, name);
        return was_warm ? `${name} was warm already` : `${name} is warm after ${(took_ms / 1000).toFixed(1)} s`;
      }),
    [client, run],
  );

  const ask = useCallback(
    (kind: ActionKind, name: string) => {
      const line = store.functions.get(name);
      const isBusy = !!line && line.held + line.in_flight > 0;
      if (kind === "warm") void warm(name);
      else if (kind === "park") void park(name);
      else if (kind === "unpark") void unpark(name);
      else if (kind === "sleep" && !isBusy) void sleep(name);
      else setAsked({ kind, name });
    },
    [store, warm, park, unpark, sleep],
  );

  const value = useMemo<Actions>(
    () => ({ ask, run, openMenu: (name, anchor) => setMenu({ name, anchor }) }),
    [ask, run],
  );
  const close = () => setAsked(null);

  return (
    <ActionsContext value={value}>
      {children}
      {menu && <Menu name={menu.name} anchor={menu.anchor} onClose={() => setMenu(null)} />}
      {asked?.kind === "sleep" && <SleepDialog name={asked.name} onClose={close} onSleep={() => void sleep(asked.name)} />}
      {asked?.kind === "scale" && <ScaleDialog name={asked.name} onClose={close} />}
      {asked?.kind === "rollback" && <RollbackDialog name={asked.name} onClose={close} />}
      {asked?.kind === "delete" && <DeleteDialog name={asked.name} onClose={close} />}
      <ul className="notes" role="status" aria-live="polite">
        {notes.map((note) => (
          <li key={note.id} className={`action-note ${note.is}`}>
            <span>{note.text}</span>
            {note.is !== "pending" && (
              <button type="button" className="button quiet icon" aria-label="Close this message" onClick={() => drop(note.id)}>
                ×
              </button>
            )}
          </li>
        ))}
      </ul>
    </ActionsContext>
  );
}
