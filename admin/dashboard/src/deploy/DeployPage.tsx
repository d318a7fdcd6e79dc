import { useCallback, useEffect, useRef, useState, useSyncExternalStore, type DragEvent } from "react";
import { go, settle } from "../route/address.ts";
import { hashOf } from "../route/hash.ts";
import { useSite } from "../store/hooks.ts";
import { DeployForm } from "./DeployForm.tsx";
import { EMPTY, type Draft, type Ready } from "./draft.ts";
import { RunView } from "./RunView.tsx";
import "./deploy.css";

/** Page that deploys an image or an ONNX file, and follows the deploy of this tab. */
export function DeployPage({ query }: { query: URLSearchParams }) {
  const { deploys } = useSite();
  const run = useSyncExternalStore(deploys.subscribe, deploys.read);
  const [draft, setDraft] = useState<Draft>(() => ({ ...EMPTY, files: deploys.offered }));
  const change = useCallback((part: Partial<Draft>) => setDraft((now) => ({ ...now, ...part })), []);
  const asked = query.get("operation") ?? "";
  const operation = run?.operation ?? "";
  const isRunning = run?.state === "running";

  useEffect(() => {
    deploys.offered = [];
    // The tab was loaded again while its deploy was running.
    if (asked && !deploys.run) void deploys.resume(asked);
    // Only at the page's beginning: later the address follows the deploy.
  }, [deploys]);
  useEffect(() => {
    if (operation) settle(hashOf("/deploy", { operation }));
  }, [operation]);
  useEffect(() => {
    if (!run?.isSending || !isRunning) return;
    const ask = (event: BeforeUnloadEvent) => event.preventDefault();
    window.addEventListener("beforeunload", ask);
    return () => window.removeEventListener("beforeunload", ask);
  }, [run?.isSending, isRunning]);

  const started = useRef<Draft | null>(null);
  useEffect(() => {
    // The next deploy is another one, unless it is being written already.
    if (run?.state === "done") setDraft((now) => (now === started.current ? { ...EMPTY, way: now.way } : now));
  }, [run?.state]);

  const start = (ready: Ready) => {
    started.current = draft;
    void deploys.start(ready);
  };
  const drop = (event: DragEvent) => {
    event.preventDefault();
    const files = [...event.dataTransfer.files];
    if (files.length && !isRunning) change({ way: "model", files });
  };
  return (
    <div className="page live deploy-page" onDragOver={(event) => event.preventDefault()} onDrop={drop}>
      <nav aria-label="Back" className="small">
        <a href="#/">← All functions</a>
      </nav>
      <h1>Deploy</h1>
      <div className="deploy-columns">
        <DeployForm draft={draft} onDraft={change} isRunning={isRunning} onDeploy={start} />
        {run ? (
          <RunView
            run={run}
            onCancel={() => void deploys.cancel()}
            onDismiss={() => {
              deploys.dismiss();
              settle("#/deploy");
            }}
          />
        ) : (
          <Words />
        )}
      </div>
    </div>
  );
}

function Words() {
  return (
    <section className="panel" aria-labelledby="deploy-words-title">
      <div className="panel-head">
        <h2 id="deploy-words-title">What happens</h2>
      </div>
      <ol className="panel-body deploy-words">
        <li>An ONNX file is uploaded, unless the server has it. An image is pulled, unless the engine has it.</li>
        <li>A trial replica loads the model, or starts the image until it is ready. A refusal has its reason.</li>
        <li>Calls go to the new revision. A failed or cancelled deploy changes nothing.</li>
        <li>
          Folders with <span className="mono">function.toml</span>, handlers and commands: <span className="mono">fnctl deploy FOLDER</span>.
        </li>
      </ol>
    </section>
  );
}

/** Take files dropped on another page to this one. */
export function useOfferedFiles(may: boolean) {
  const { deploys } = useSite();
  return {
    onDragOver: (event: DragEvent) => {
      if (may && event.dataTransfer.types.includes("Files")) event.preventDefault();
    },
    onDrop: (event: DragEvent) => {
      const files = [...event.dataTransfer.files];
      if (!may || !files.length) return;
      event.preventDefault();
      deploys.offered = files;
      go("#/deploy");
    },
  };
}
