import { memo, useMemo } from "react";
import { PARTS, stack, x, type Scale } from "./lanes.ts";
import type { BucketUse } from "../api/types.ts";

/** Device-seconds of one device or function over time: three SVG paths for any number of buckets. */
export const Lane = memo(function Lane({
  use,
  bucket_s,
  scale,
  height,
  cursor_s,
}: {
  use: readonly BucketUse[];
  bucket_s: number;
  scale: Scale;
  height: number;
  cursor_s: number | null;
}) {
  const paths = useMemo(() => stack(use, bucket_s, scale, height), [use, bucket_s, scale, height]);
  return (
    <svg
      className="lane"
      width={scale.width}
      height={height}
      viewBox={`0 0 ${scale.width} ${height}`}
      aria-hidden="true"
    >
      {PARTS.map((part) => paths[part] && <path key={part} className={`in-${part}`} d={paths[part]} />)}
      {cursor_s !== null && <line className="cursor" x1={x(scale, cursor_s)} x2={x(scale, cursor_s)} y2={height} />}
    </svg>
  );
});
