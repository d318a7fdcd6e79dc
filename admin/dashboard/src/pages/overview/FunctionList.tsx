import { useCallback, useDeferredValue, useEffect, useMemo, useRef, useState, type KeyboardEvent } from "react";
import { plural } from "../../design/format.ts";
import { useStep } from "../../design/narrow.ts";
import { useWindowed } from "../../design/windowed.ts";
import { go, settle } from "../../route/address.ts";
import { functionHash, hashOf } from "../../route/hash.ts";
import { useNamesVersion, useOrderVersion, useSite } from "../../store/hooks.ts";
import { arrange, queryOf, sortedBy, viewOf, type View } from "./arrange.ts";
import { columnsOf, type Column } from "./columns.ts";
import { FunctionRow } from "./FunctionRow.tsx";
import { nextRow } from "./keys.ts";
import { Toolbar } from "./Toolbar.tsx";

/** Minimum widths (px) for a table, and for a table with all columns. */
const STEPS = [0, 660, 1000] as const;
const ROW = 46;
const CARD = 124;

/** All functions as rows; only visible rows are rendered. */
export function FunctionList({ query }: { query: URLSearchParams }) {
  const view = useMemo(() => viewOf(query), [query]);
  const show = useCallback((next: View) => settle(hashOf("/", queryOf(next))), []);
  const box = useRef<HTMLElement>(null);
  const list = useRef<HTMLDivElement>(null);
  const step = useStep(box, STEPS);
  const columns = columnsOf(step);
  const height = step ? ROW : CARD;
  const [isHeld, setHeld] = useState(false);
  const names = useArranged(useDeferredValue(view), isHeld);
  const span = useWindowed(list, names.length, height);
  const active = useActive(names, list, height);
  const { store } = useSite();

  const rows = names.slice(span.first, span.end).map((name, at) => ({ name, at: span.first + at }));
  // The focused row stays mounted while scrolled out of view, or the focus would be lost.
  const isActiveDrawn = active.at >= span.first && active.at < span.end;
  const activeName = names[active.at];
  if (!isActiveDrawn && activeName !== undefined) rows.push({ name: activeName, at: active.at });

  return (
    <section ref={box} className={`panel functions ${step ? "as-table" : "as-cards"} step-${step}`} aria-label="Functions">
      <Toolbar view={view} onView={show} shown={names.length} isCards={!step} />
      <div
        role="grid"
        aria-label="Functions"
        aria-rowcount={names.length + 1}
        aria-colcount={columns.length}
        onKeyDown={(event) => active.onKey(event, isCardsOf(step))}
        onPointerEnter={() => setHeld(true)}
        onPointerLeave={() => setHeld(false)}
      >
        <div role="rowgroup" className="functions-head">
          <div role="row" aria-rowindex={1} className="function-grid">
            {columns.map((column) => (
              <Head key={column.key} column={column} view={view} onView={show} />
            ))}
          </div>
        </div>
        <div role="rowgroup" ref={list} className="function-rows" style={{ height: Math.max(names.length * height, 1) }}>
          {rows.map(({ name, at }) => (
            <FunctionRow
              key={name}
              name={name}
              at={at}
              height={height}
              columns={columns}
              isActive={at === active.at}
              onActive={active.set}
            />
          ))}
        </div>
      </div>
      {names.length === 0 && (
        <p className="functions-none muted">
          {store.functions.size ? (
            <>
              None of {plural(store.functions.size, "function")} matches.{" "}
              <button type="button" className="button" onClick={() => show({ ...view, text: "", states: [] })}>
                Show all
              </button>
            </>
          ) : store.isWhole ? (
            <>
              No functions yet: drop an ONNX file here, <a href="#/deploy">deploy one</a>, or use <code>fnctl deploy PATH</code>.
            </>
          ) : (
            "Waiting for the server …"
          )}
        </p>
      )}
    </section>
  );
}

const isCardsOf = (step: number): boolean => step === 0;

/** The names in the view's order. While `isHeld` (the pointer is on the list) rows do not move:
 * a row must not move away under a click. */
function useArranged(view: View, isHeld: boolean): string[] {
  const { store } = useSite();
  const names = useNamesVersion();
  const order = useOrderVersion();
  const held = useRef(order);
  if (!isHeld) held.current = order;
  const version = held.current;
  return useMemo(
    () => arrange(store.functions.values(), view, (name) => store.activities.get(name).errors[0]?.at_s ?? 0),
    // The maps are mutated in place: the versions show when.
    [store, view, names, version],
  );
}

interface Active {
  at: number;
  set(name: string): void;
  onKey(event: KeyboardEvent, isCards: boolean): void;
}

/** The row with the keyboard focus, kept by name since rows move. */
function useActive(names: readonly string[], list: React.RefObject<HTMLDivElement | null>, height: number): Active {
  const [name, set] = useState<string | null>(null);
  const at = Math.max(0, name === null ? 0 : names.indexOf(name));
  const wanted = useRef<string | null>(null);

  // After the render that mounted the row.
  useEffect(() => {
    if (wanted.current === null) return;
    const row = list.current?.querySelector<HTMLElement>('[aria-selected="true"]');
    row?.focus({ preventScroll: true });
    wanted.current = null;
  });

  const onKey = (event: KeyboardEvent) => {
    const inRow = (event.target as HTMLElement).getAttribute("role") === "row";
    if (!inRow || event.altKey || event.ctrlKey || event.metaKey) return;
    const current = names[at];
    if (event.key === "Enter" && current !== undefined) {
      event.preventDefault();
      go(functionHash(current));
      return;
    }
    const page = Math.max(1, Math.floor(window.innerHeight / height) - 3);
    const next = nextRow(event.key, at, names.length, page);
    const target = next === null ? undefined : names[next];
    if (next === null || target === undefined) return;
    event.preventDefault();
    wanted.current = target;
    set(target);
    bringIntoSight(list.current, next, height);
  };
  return { at, set, onKey };
}

/** Scroll the page so that row `at` is between the sticky heads and the lower edge. */
function bringIntoSight(list: HTMLElement | null, at: number, height: number): void {
  if (!list) return;
  const top = list.getBoundingClientRect().top + at * height;
  const head = 150;
  if (top < head) window.scrollBy({ top: top - head });
  else if (top + height > window.innerHeight - 8) window.scrollBy({ top: top + height - window.innerHeight + 8 });
}

function Head({ column, view, onView }: { column: Column; view: View; onView: (view: View) => void }) {
  const { sort } = column;
  const isSorted = sort !== undefined && view.sort === sort;
  const way = isSorted ? (view.isDescending ? "descending" : "ascending") : undefined;
  return (
    <div role="columnheader" aria-sort={way} className={`cell head ${column.key}${column.isNumber ? " right" : ""}`}>
      {sort === undefined ? (
        <span className={column.isHidden ? "unseen" : ""}>{column.title}</span>
      ) : (
        <button type="button" onClick={() => onView(sortedBy(view, sort))} title={column.hint}>
          {column.title}
          <span aria-hidden="true" className="sort-mark">
            {isSorted ? (view.isDescending ? "▾" : "▴") : ""}
          </span>
        </button>
      )}
    </div>
  );
}
