import { useSyncExternalStore } from "react";
import { useMayDeploy, useSite } from "../store/hooks.ts";

/** Way to the deploy page, with the reason if the key may not deploy. It shows that a deploy is running. */
export function DeployButton() {
  const { deploys } = useSite();
  const { may, why } = useMayDeploy();
  const run = useSyncExternalStore(deploys.subscribe, deploys.read);
  if (may) {
    return (
      <a className="button primary deploy-button" href="#/deploy">
        {run?.state === "running" ? "Deploying …" : "Deploy"}
      </a>
    );
  }
  return (
    // Not `disabled`: keyboard users must reach it to read the reason.
    <button type="button" className="button deploy-button" aria-disabled="true" title={why}>
      Deploy
      <span className="unseen">: not now, {why}</span>
    </button>
  );
}
