import "./phases.css";

export interface Piece {
  name: string;
  colour: string;
  /** 0..1 of the bar. */
  from: number;
  share: number;
}

/** Adjacent segments on a rail. The text beside it says the same, so it is hidden from screen readers. */
export function PhaseBar({ pieces, height = 14 }: { pieces: Piece[]; height?: number }) {
  return (
    <svg
      className="phase-bar"
      viewBox={`0 0 1000 ${height}`}
      height={height}
      preserveAspectRatio="none"
      aria-hidden="true"
    >
      <rect className="rail" width="1000" height={height} rx="2" />
      {pieces.map((piece) => (
        <rect
          key={piece.name}
          x={piece.from * 1000}
          width={Math.max(1.5, piece.share * 1000)}
          height={height}
          fill={piece.colour}
          stroke="var(--surface)"
          strokeWidth="1"
          vectorEffect="non-scaling-stroke"
        />
      ))}
    </svg>
  );
}

export interface Key {
  name: string;
  colour: string;
  text: string;
}

/** Legend: each colour's phase and its time in the selected cold start, named by `of`. */
export function Legend({ keys, of = "" }: { keys: Key[]; of?: string }) {
  return (
    <ul className="phase-legend">
      {of && <li className="legend-of">{of}</li>}
      {keys.map(({ name, colour, text }) => (
        <li key={name}>
          <i style={{ color: colour }} aria-hidden="true" />
          {name} <b>{text}</b>
        </li>
      ))}
    </ul>
  );
}

export const phaseColour = (phase: string): string => `var(--phase-${phase})`;
