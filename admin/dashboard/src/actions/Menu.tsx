import { useEffect, useLayoutEffect, useRef, type KeyboardEvent } from "react";
import { useFunction, useMayDeploy } from "../store/hooks.ts";
import { useActions, type ActionKind } from "./ActionsHost.tsx";
import { needlessOf } from "./needless.ts";

const ITEMS: readonly { kind: ActionKind; title: string }[] = [
  { kind: "warm", title: "Warm up" },
  { kind: "sleep", title: "Put to sleep" },
  { kind: "park", title: "Park" },
  { kind: "unpark", title: "Unpark" },
  { kind: "scale", title: "Scale …" },
  { kind: "rollback", title: "Roll back …" },
  { kind: "delete", title: "Delete …" },
];

/** Menu of a function's actions beside `anchor`. The focus returns to `anchor` when it closes. */
export function Menu({ name, anchor, onClose }: { name: string; anchor: HTMLElement; onClose: () => void }) {
  const box = useRef<HTMLDivElement>(null);
  const { ask } = useActions();
  const { may, why } = useMayDeploy();
  const line = useFunction(name);
  const needless = line ? needlessOf(line) : {};
  const shown = ITEMS.filter(({ kind }) => line?.park || (kind !== "park" && kind !== "unpark"));

  useLayoutEffect(() => {
    const menu = box.current;
    if (!menu) return;
    const place = anchor.getBoundingClientRect();
    const below = place.bottom + 4 + menu.offsetHeight < window.innerHeight;
    menu.style.top = `${below ? place.bottom + 4 : Math.max(4, place.top - 4 - menu.offsetHeight)}px`;
    menu.style.left = `${Math.max(4, Math.min(window.innerWidth - menu.offsetWidth - 4, place.right - menu.offsetWidth))}px`;
    menu.querySelector<HTMLElement>("[role=menuitem]")?.focus({ preventScroll: true });
  }, [anchor]);

  useEffect(() => {
    const outside = (event: PointerEvent) => {
      if (event.target instanceof Node && !box.current?.contains(event.target)) onClose();
    };
    document.addEventListener("pointerdown", outside);
    window.addEventListener("scroll", onClose, { passive: true });
    return () => {
      document.removeEventListener("pointerdown", outside);
      window.removeEventListener("scroll", onClose);
    };
  }, [onClose]);

  const back = () => {
    onClose();
    anchor.focus({ preventScroll: true });
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "Escape" || event.key === "Tab") {
      event.preventDefault();
      return back();
    }
    const items = [...(box.current?.querySelectorAll<HTMLElement>("[role=menuitem]") ?? [])];
    const at = items.indexOf(document.activeElement as HTMLElement);
    const steps: Record<string, number> = { ArrowDown: at + 1, ArrowUp: at - 1 + items.length, Home: 0, End: items.length - 1 };
    const next = steps[event.key];
    if (next === undefined) return;
    event.preventDefault();
    items[next % items.length]?.focus();
  };

  return (
    <div ref={box} className="menu" role="menu" aria-label={`Actions of ${name}`} onKeyDown={onKey}>
      {shown.map(({ kind, title }) => {
        const reason = may ? (needless[kind] ?? "") : why;
        return (
          <button
            key={kind}
            type="button"
            role="menuitem"
            tabIndex={-1}
            className={`menu-item${kind === "delete" ? " danger" : ""}`}
            aria-disabled={reason ? true : undefined}
            title={reason || undefined}
            onClick={() => {
              if (reason) return;
              back();
              ask(kind, name);
            }}
          >
            {title}
            {reason && <span className="unseen">: {reason}</span>}
          </button>
        );
      })}
      {!may && <p className="menu-why small">{why}</p>}
    </div>
  );
}
