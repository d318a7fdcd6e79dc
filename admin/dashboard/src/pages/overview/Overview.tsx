import { Devices } from "./Devices.tsx";
import { FunctionList } from "./FunctionList.tsx";
import { Totals } from "./Totals.tsx";
import "./overview.css";

/** Overview of the server: totals, devices, functions. */
export function Overview({ query }: { query: URLSearchParams }) {
  return (
    <div className="page live overview">
      <h1 className="unseen">Overview</h1>
      <Totals />
      <FunctionList query={query} />
      <Devices />
    </div>
  );
}
