import { useEffect } from "react";
import { span } from "../design/format.ts";
import { useSecond } from "../store/clock.ts";
import { useConnection, useSite } from "../store/hooks.ts";

const LATE_S = 4;

/** State of the event stream: live, seconds behind, or disconnected. */
export function ConnectionLine() {
  const connection = useConnection();
  const { store } = useSite();
  useSecond();
  const silence_s = store.silence_s();
  const isLate = connection.is === "live" && silence_s !== null && silence_s > LATE_S;
  const isFresh = connection.is === "live" && !isLate;
  const isStale = !isFresh && store.functions.size > 0;
  useEffect(() => {
    document.documentElement.classList.toggle("is-stale", isStale);
    return () => document.documentElement.classList.remove("is-stale");
  }, [isStale]);
  return (
    <p className={`connection ${isFresh ? "fresh" : "late"}`} role="status" title={connection.is === "reconnecting" ? connection.why : undefined}>
      <span className="connection-dot" aria-hidden="true" />
      {words()}
    </p>
  );

  function words(): string {
    const behind = silence_s === null ? "" : `, ${span(silence_s)} behind`;
    switch (connection.is) {
      case "live":
        return isLate ? `${span(silence_s)} behind` : "live";
      case "connecting":
        return "connecting";
      case "reconnecting":
        return `reconnecting${behind}`;
      case "refused":
        return `refused${behind}`;
    }
  }
}
