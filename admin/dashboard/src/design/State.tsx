import type { ReactElement } from "react";
import "./state.css";

/** Mark of each state. Shapes differ too, for readers who cannot tell the colours apart. */
const SHAPES: Record<string, ReactElement> = {
  cold: <circle cx="6" cy="6" r="4.2" fill="none" stroke="currentColor" strokeWidth="1.6" />,
  waking: (
    <>
      <circle cx="6" cy="6" r="4.2" fill="none" stroke="currentColor" strokeWidth="1.6" />
      <path d="M6 1.8a4.2 4.2 0 0 1 0 8.4z" fill="currentColor" />
    </>
  ),
  warm: <circle cx="6" cy="6" r="5" fill="currentColor" />,
  parked: <path d="M6.4 1A5 5 0 1 0 11 7.3 4.3 4.3 0 0 1 6.4 1z" fill="currentColor" />,
  draining: <path d="M1 2h10L6 11z" fill="currentColor" />,
  failing: <path d="M6 .6 11.4 6 6 11.4.6 6zM5.2 3v3.6h1.6V3zm0 4.6V9h1.6V7.6z" fill="currentColor" fillRule="evenodd" />,
};

/** States of replicas, devices and hosts, shown as the closest state of a function. */
const LIKE: Record<string, string> = {
  starting: "waking",
  loading: "waking",
  standby: "cold",
  ready: "warm",
  parking: "parked",
  proving: "parked",
  unparking: "waking",
  verifying: "waking",
  releasing: "draining",
  free: "cold",
  taken: "warm",
  quarantined: "failing",
  cordoned: "draining",
  joining: "waking",
  up: "warm",
  unreachable: "failing",
  gone: "failing",
};

export function lookOf(state: string): string {
  return LIKE[state] ?? (state in SHAPES ? state : "cold");
}

/** The state whose look a function has: one that does not answer, or answers wrong, is drawn as failing. */
export function shownState({ state, trouble, golden }: { state: string; trouble?: string; golden?: string }): string {
  return trouble || (state === "warm" && golden === "wrong") ? "failing" : state;
}

export function StateMark({ state }: { state: string }) {
  const look = lookOf(state);
  return (
    <svg className={`mark ${look}`} viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">
      {SHAPES[look]}
    </svg>
  );
}

/** The mark and the word. `more` follows in the same colour: "warm 2/4". */
export function StateText({ state, word = state, more }: { state: string; word?: string; more?: string }) {
  return (
    <span className={`state ${lookOf(state)}`}>
      <StateMark state={state} />
      <span>
        {word}
        {more ? ` ${more}` : ""}
      </span>
    </span>
  );
}
