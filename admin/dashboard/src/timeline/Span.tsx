export type Hours = 1 | 24;

/** The hours of "?hours=24" in an address; 1 for anything else. */
export function hoursOf(query: URLSearchParams): Hours {
  return query.get("hours") === "24" ? 24 : 1;
}

/** Switch between the last hour and the last day. */
export function SpanChoice({ hours, onHours }: { hours: Hours; onHours: (hours: Hours) => void }) {
  return (
    <div className="play-ways" role="group" aria-label="How far back">
      {([1, 24] as const).map((one) => (
        <button key={one} type="button" aria-pressed={one === hours} onClick={() => onHours(one)}>
          {one === 1 ? "1 hour" : "24 hours"}
        </button>
      ))}
    </div>
  );
}

/** Legend of the lanes' colours. */
export function UseLegend({ withStates = false }: { withStates?: boolean }) {
  const keys = [
    ["busy", "a model runs, or an exchange is open"],
    ["idle", "ready, nothing to do"],
    ["waking", "starting and loading"],
  ] as const;
  return (
    <ul className="phase-legend" aria-label="Colours">
      {keys.map(([part, text]) => (
        <li key={part}>
          <i className={`use-key in-${part}`} aria-hidden="true" />
          {part}: {text}
        </li>
      ))}
      {withStates && (
        <li>
          <i className="use-key in-cold" aria-hidden="true" />
          cold or parked: no device
        </li>
      )}
    </ul>
  );
}
