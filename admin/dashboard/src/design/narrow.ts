import { useEffect, useState, useSyncExternalStore, type RefObject } from "react";

const narrow = window.matchMedia("(max-width: 640px)");

/** Whether the window is at most as wide as a phone. */
export function useIsNarrow(): boolean {
  return useSyncExternalStore(
    (listener) => {
      narrow.addEventListener("change", listener);
      return () => narrow.removeEventListener("change", listener);
    },
    () => narrow.matches,
  );
}

/** Index of the largest of `steps` (ascending widths in px) that fits into `box`; 0 if none does. */
export function useStep(box: RefObject<HTMLElement | null>, steps: readonly number[]): number {
  const [step, setStep] = useState(() => stepOf(window.innerWidth, steps));
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const sizes = new ResizeObserver(() => setStep(stepOf(element.clientWidth, steps)));
    sizes.observe(element);
    return () => sizes.disconnect();
  }, [box, steps]);
  return step;
}

export function stepOf(width: number, steps: readonly number[]): number {
  let found = 0;
  steps.forEach((least, at) => {
    if (width >= least) found = at;
  });
  return found;
}
