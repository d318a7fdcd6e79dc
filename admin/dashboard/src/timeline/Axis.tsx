import { clockTime } from "../design/format.ts";
import { ticks, x, type Scale } from "./lanes.ts";

const APART_PX = 64;

/** The time axis below a lane; `cursor_s` is the position of the cursor. */
export function Axis({ scale, cursor_s }: { scale: Scale; cursor_s: number | null }) {
  const zone_s = -new Date(scale.to_s * 1000).getTimezoneOffset() * 60;
  return (
    <svg className="axis" width={scale.width} height="18" viewBox={`0 0 ${scale.width} 18`} aria-hidden="true">
      {ticks(scale, APART_PX, zone_s).map((at) => (
        <g key={at} transform={`translate(${x(scale, at)} 0)`}>
          <line y2="4" />
          {x(scale, at) > 14 && x(scale, at) < scale.width - 14 && (
            <text y="15" textAnchor="middle">
              {clockTime(at).slice(0, 5)}
            </text>
          )}
        </g>
      ))}
      {cursor_s !== null && <line className="cursor" x1={x(scale, cursor_s)} x2={x(scale, cursor_s)} y2="18" />}
    </svg>
  );
}
