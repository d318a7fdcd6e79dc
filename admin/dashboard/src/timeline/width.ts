import { useLayoutEffect, useState, type RefObject } from "react";

/** The width of an element in whole px, updated when the window changes. */
export function useWidth(box: RefObject<HTMLElement | null>, first = 600): number {
  const [width, setWidth] = useState(first);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const look = () => setWidth(Math.max(60, Math.floor(element.clientWidth)));
    look();
    const sizes = new ResizeObserver(look);
    sizes.observe(element);
    return () => sizes.disconnect();
  }, [box]);
  return width;
}
