import type { KeyboardEvent, PointerEvent, ReactNode } from "react";
import { clockTime } from "../design/format.ts";
import type { Scale } from "./lanes.ts";

/**
 * Lanes with a time cursor that the pointer and the arrow keys move. `words` describes the position;
 * screen readers read it at every step.
 */
export function Cursor({
  scale,
  bucket_s,
  cursor_s,
  words,
  label,
  onMove,
  children,
}: {
  scale: Scale;
  bucket_s: number;
  cursor_s: number | null;
  words: string;
  label: string;
  onMove: (at_s: number | null) => void;
  children: ReactNode;
}) {
  const at_s = cursor_s ?? scale.to_s - bucket_s;
  const clamp = (wanted_s: number) => Math.min(scale.to_s - bucket_s, Math.max(scale.from_s, wanted_s));
  const key = (event: KeyboardEvent) => {
    const steps: Record<string, number> = {
      ArrowLeft: -bucket_s,
      ArrowRight: bucket_s,
      PageUp: -10 * bucket_s,
      PageDown: 10 * bucket_s,
      Home: scale.from_s - at_s,
      End: scale.to_s - at_s,
    };
    const step = steps[event.key];
    if (event.key === "Escape") onMove(null);
    if (step === undefined) return;
    event.preventDefault();
    onMove(clamp(at_s + step));
  };
  const point = (event: PointerEvent<HTMLElement>) => {
    const box = event.currentTarget.getBoundingClientRect();
    const share = (event.clientX - box.left) / (box.width || 1);
    const wanted_s = scale.from_s + share * (scale.to_s - scale.from_s);
    onMove(clamp(scale.from_s + Math.floor((wanted_s - scale.from_s) / bucket_s) * bucket_s));
  };
  return (
    <div
      className="time-cursor"
      role="slider"
      tabIndex={0}
      aria-label={label}
      aria-valuemin={Math.round(scale.from_s)}
      aria-valuemax={Math.round(scale.to_s)}
      aria-valuenow={Math.round(at_s)}
      aria-valuetext={`${clockTime(at_s)}: ${words}`}
      onKeyDown={key}
      onPointerMove={point}
      onPointerLeave={() => onMove(null)}
    >
      {children}
    </div>
  );
}
