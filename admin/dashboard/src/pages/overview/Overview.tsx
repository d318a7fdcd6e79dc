import { useOfferedFiles } from "../../deploy/DeployPage.tsx";
import { useMayDeploy } from "../../store/hooks.ts";
import { Devices } from "./Devices.tsx";
import { FunctionList } from "./FunctionList.tsx";
import { Totals } from "./Totals.tsx";
import "./overview.css";

/** Overview of the server: totals, devices, functions. A model that is dropped on it goes to the deploy page. */
export function Overview({ query }: { query: URLSearchParams }) {
  const { may } = useMayDeploy();
  return (
    <div className="page live overview" {...useOfferedFiles(may)}>
      <h1 className="unseen">Overview</h1>
      <Totals />
      <FunctionList query={query} />
      <Devices />
    </div>
  );
}
