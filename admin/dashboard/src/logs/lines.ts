/** The last lines of a log, bounded, and their filters. */

export interface Line {
  /** Sequence number over all lines received. */
  n: number;
  replica: string;
  text: string;
  /** A note of the page itself, for example that a replica has ended. */
  isNote: boolean;
}

export const LINES_MAX = 5_000;
export const TEXT_MAX = 4_000;

export class Lines {
  private kept: Line[] = [];
  private came = 0;

  constructor(private readonly max = LINES_MAX) {}

  /** Number of lines received. */
  get count(): number {
    return this.came;
  }

  /** A copy of the lines, oldest first; later lines do not change it. */
  get all(): readonly Line[] {
    return this.kept;
  }

  add(lines: readonly { replica: string; text: string; isNote?: boolean }[]): void {
    if (!lines.length) return;
    const fresh = lines.map(({ replica, text, isNote }) => ({
      n: (this.came += 1),
      replica,
      text: text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}…` : text,
      isNote: isNote ?? false,
    }));
    this.kept = [...this.kept.slice(-this.max), ...fresh].slice(-this.max);
  }

  clear(): void {
    this.kept = [];
  }
}

/** The lines that contain `filter`, ignoring case; of one replica if it is given. */
export function matching(lines: readonly Line[], filter: string, replica = ""): readonly Line[] {
  const wanted = filter.trim().toLowerCase();
  if (!wanted && !replica) return lines;
  return lines.filter(
    (line) => (!replica || line.replica === replica) && (!wanted || line.text.toLowerCase().includes(wanted)),
  );
}

/** Whether a list with this scroll position shows its end, within one row. */
export function isAtEnd(
  scroll: { scrollTop: number; clientHeight: number; scrollHeight: number },
  row_px: number,
): boolean {
  return scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < row_px * 1.5;
}
