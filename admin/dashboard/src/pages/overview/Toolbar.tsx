import { useEffect, useRef } from "react";
import { STATES, type FunctionState } from "../../api/types.ts";
import { DeployButton } from "../../deploy/DeployButton.tsx";
import { StateMark } from "../../design/State.tsx";
import { count } from "../../design/format.ts";
import { SORTS, type SortKey, type View } from "./arrange.ts";
import { SORTABLE } from "./columns.ts";
import { useSums } from "./Totals.tsx";

/** Search field, and filters by state with the number of functions in each. */
export function Toolbar({ view, onView, shown, isCards }: { view: View; onView: (view: View) => void; shown: number; isCards: boolean }) {
  const sums = useSums();
  const search = useRef<HTMLInputElement>(null);
  useSlash(search);
  const toggle = (state: FunctionState) => {
    const isOn = view.states.includes(state);
    const states = STATES.filter((one) => (one === state ? !isOn : view.states.includes(one)));
    onView({ ...view, states });
  };
  // Most servers have no function that is parked.
  const states = STATES.filter((one) => one !== "parked" || sums.parkable > 0 || view.states.includes(one));
  return (
    <div className="functions-tools">
      <h2 className="functions-title">
        Functions <span className="muted small">{shown === sums.functions ? count(shown) : `${count(shown)} of ${count(sums.functions)}`}</span>
      </h2>
      <div className="search">
        <input
          ref={search}
          className="field"
          type="search"
          placeholder="Name, label or device"
          aria-label="Search functions"
          aria-keyshortcuts="/"
          spellCheck={false}
          value={view.text}
          onChange={(event) => onView({ ...view, text: event.target.value })}
          onKeyDown={(event) => {
            if (event.key !== "Escape") return;
            onView({ ...view, text: "" });
            event.currentTarget.blur();
          }}
        />
        <kbd aria-hidden="true">/</kbd>
      </div>
      <div className="filters" role="group" aria-label="States">
        {states.map((state) => (
          <button
            key={state}
            type="button"
            className={`filter ${state}`}
            aria-pressed={view.states.includes(state)}
            onClick={() => toggle(state)}
          >
            <StateMark state={state} /> {state} <span className="filter-count">{count(sums.states[state])}</span>
          </button>
        ))}
      </div>
      {isCards && <SortChoice view={view} onView={onView} />}
      <DeployButton />
    </div>
  );
}

/** Sort control for cards, which have no column heads. */
function SortChoice({ view, onView }: { view: View; onView: (view: View) => void }) {
  const chosen = `${view.isDescending ? "-" : ""}${view.sort}`;
  const choose = (value: string) => {
    const sort: SortKey = SORTS.find((one) => one === value.replace(/^-/, "")) ?? view.sort;
    onView({ ...view, sort, isDescending: value.startsWith("-") });
  };
  return (
    <select className="field" aria-label="Sort by" value={chosen} onChange={(event) => choose(event.target.value)}>
      {SORTABLE.flatMap(({ sort, title }) => [
        <option key={`${sort}+`} value={sort}>{`${title} ▴`}</option>,
        <option key={`${sort}-`} value={`-${sort}`}>{`${title} ▾`}</option>,
      ])}
    </select>
  );
}

/** The key "/" focuses the search, except in an input field. */
function useSlash(search: React.RefObject<HTMLInputElement | null>): void {
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const isField = event.target instanceof HTMLElement && event.target.closest("input, textarea, select, dialog, [contenteditable]");
      if (event.key !== "/" || isField || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      search.current?.focus();
      search.current?.select();
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, [search]);
}
