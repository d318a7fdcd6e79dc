import { useActions, type ActionKind } from "../../actions/ActionsHost.tsx";
import { needlessOf } from "../../actions/needless.ts";
import type { FunctionRow } from "../../api/types.ts";
import { useMayDeploy } from "../../store/hooks.ts";

const BUTTONS: readonly { kind: ActionKind; title: string }[] = [
  { kind: "warm", title: "Warm" },
  { kind: "sleep", title: "Sleep" },
  { kind: "park", title: "Park" },
  { kind: "unpark", title: "Unpark" },
  { kind: "scale", title: "Scale" },
  { kind: "rollback", title: "Roll back" },
  { kind: "delete", title: "Delete" },
];

/** Actions on the function, each with the reason if it is unavailable. */
export function FunctionActions({ line, revisions }: { line: FunctionRow; revisions: number | null }) {
  const { ask } = useActions();
  const { may, why } = useMayDeploy();
  const needless: Partial<Record<ActionKind, string>> = {
    ...needlessOf(line),
    ...(revisions === 1 ? { rollback: "there is only one revision" } : {}),
  };
  const shown = BUTTONS.filter(({ kind }) => line.park || (kind !== "park" && kind !== "unpark"));
  return (
    <div className="row-of" role="group" aria-label={`Actions of ${line.name}`}>
      {shown.map(({ kind, title }) => {
        const reason = may ? (needless[kind] ?? "") : why;
        return (
          // Not `disabled`: keyboard users must reach it to read the reason.
          <button
            key={kind}
            className={kind === "delete" ? "button danger" : "button"}
            type="button"
            aria-disabled={reason ? true : undefined}
            title={reason || undefined}
            onClick={() => {
              if (!reason) ask(kind, line.name);
            }}
          >
            {title}
            {reason && <span className="unseen">: not now, {reason}</span>}
          </button>
        );
      })}
      {!may && <p className="small muted fn-may">{why}</p>}
    </div>
  );
}
