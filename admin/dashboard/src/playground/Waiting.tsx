import { useState } from "react";
import type { FunctionRow } from "../api/types.ts";
import { span } from "../design/format.ts";
import { StateText } from "../design/State.tsx";
import { Doing } from "../pages/function/Header.tsx";
import { useSecond } from "../store/clock.ts";

/** State of the function while a call is running. */
export function Waiting({ line }: { line: FunctionRow | undefined }) {
  const [began] = useState(() => performance.now());
  useSecond();
  return (
    <div className="outcome play-waiting" role="status">
      <span>waiting for {span((performance.now() - began) / 1000)}</span>
      {line && (
        <>
          <StateText state={line.state} />
          {line.state === "waking" && <Doing line={line} />}
          {line.held > 0 && <span className="muted">{line.held} held</span>}
          {line.state !== "warm" && line.reason && <span className="muted">{line.reason}</span>}
        </>
      )}
    </div>
  );
}
