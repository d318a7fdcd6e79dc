import { useLayoutEffect, useState, type RefObject } from "react";

/** How wide an element is, in whole px, also after the window has changed. */
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
