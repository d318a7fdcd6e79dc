import { StateText } from "../../design/State.tsx";
import { useFunction } from "../../store/hooks.ts";

export function FunctionPage({ name }: { name: string; query: URLSearchParams }) {
  const line = useFunction(name);
  return (
    <div className="page live">
      <h1>{name}</h1>
      {line ? <StateText state={line.state} /> : <p className="muted">There is no function of this name.</p>}
    </div>
  );
}
