import { useLayoutEffect, useState, type RefObject } from "react";

/** Rows from `first` up to, not including, `end`. */
export interface Span {
  first: number;
  end: number;
}

const STEP = 4;

/**
 * The visible rows of `count` rows of equal `height`, plus a few around them, when the list's
 * top lies `top` px below the viewport's (negative: scrolled past) and the viewport is `view` px
 * high. The range moves in steps of a few rows, so that most scrolling renders nothing.
 */
export function spanOf(count: number, height: number, top: number, view: number, around = 4): Span {
  const above = Math.floor(-top / height) - around;
  const below = Math.ceil((view - top) / height) + around;
  const first = Math.floor(Math.min(Math.max(0, above), count) / STEP) * STEP;
  return { first, end: Math.min(count, Math.max(first, Math.ceil(below / STEP) * STEP)) };
}

/**
 * The rows of a list to render. `list` is the element as high as all rows; it scrolls in `scroller`,
 * or with the page if that is null.
 */
export function useWindowed(
  list: RefObject<HTMLElement | null>,
  count: number,
  height: number,
  scroller: RefObject<HTMLElement | null> | null = null,
): Span {
  const [span, setSpan] = useState<Span>({ first: 0, end: Math.min(count, 40) });
  useLayoutEffect(() => {
    const look = () => {
      const box = list.current;
      if (!box) return;
      const outer = scroller?.current ?? null;
      const edge = outer ? outer.getBoundingClientRect().top : 0;
      const view = outer ? outer.clientHeight : window.innerHeight;
      const next = spanOf(count, height, box.getBoundingClientRect().top - edge, view);
      setSpan((now) => (now.first === next.first && now.end === next.end ? now : next));
    };
    look();
    const target: HTMLElement | Window = scroller?.current ?? window;
    target.addEventListener("scroll", look, { passive: true });
    const sizes = new ResizeObserver(look);
    sizes.observe(scroller?.current ?? document.documentElement);
    return () => {
      target.removeEventListener("scroll", look);
      sizes.disconnect();
    };
  }, [list, scroller, count, height]);
  return span;
}
