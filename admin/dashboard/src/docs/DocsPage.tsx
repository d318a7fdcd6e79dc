import { useEffect, useMemo, useState } from "react";
import { wordsOf } from "../api/problem.ts";
import { CopyText } from "../design/CopyText.tsx";
import { Marked } from "./Marked.tsx";
import { Operation } from "./OperationView.tsx";
import { groupsOf, type OpenApi } from "./document.ts";
import "./docs.css";

const PATH = "/openapi.json";

type Read = { document: OpenApi } | { problem: string } | null;

/** The routes of the server, as its OpenAPI document describes them. Needs no key. */
export function DocsPage() {
  const [read, setRead] = useState<Read>(null);
  const [words, setWords] = useState("");
  useEffect(() => {
    const leaving = new AbortController();
    void fetchDocument(leaving.signal, setRead);
    return () => leaving.abort();
  }, []);
  const document = read && "document" in read ? read.document : null;
  const groups = useMemo(() => (document ? groupsOf(document, words) : []), [document, words]);
  return (
    <div className="page docs">
      <div className="docs-head">
        <h1>Routes of this server</h1>
        {document && <span className="tag">{document.info.version}</span>}
        <span className="spread" />
        <input
          className="field"
          type="search"
          placeholder="Find a route"
          aria-label="Find a route"
          value={words}
          onChange={(event) => setWords(event.target.value)}
        />
      </div>
      {read && "problem" in read && (
        <p className="note bad" role="alert">
          The document could not be read: {read.problem}
        </p>
      )}
      {document?.info.description?.split("\n\n").map((text) => (
        <p key={text} className="muted">
          <Marked text={text} />
        </p>
      ))}
      {document && <CopyText label="Command that fetches the document" text={`curl ${location.origin}${PATH}`} />}
      <p className="unseen" role="status">
        {document && `${groups.reduce((sum, group) => sum + group.routes.length, 0)} routes`}
      </p>
      {document && groups.length === 0 && <p className="note">No route has these words.</p>}
      {document &&
        groups.map((group) => (
          <section key={group.name} className="panel" aria-label={group.name}>
            <div className="panel-head">
              <h2>{group.name}</h2>
              <span className="muted small">{group.routes.length}</span>
            </div>
            {group.routes.map((route) => (
              <Operation key={route.operation.operationId} route={route} document={document} />
            ))}
          </section>
        ))}
    </div>
  );
}

async function fetchDocument(signal: AbortSignal, set: (read: Read) => void): Promise<void> {
  try {
    const response = await fetch(PATH, { signal, credentials: "omit" });
    if (!response.ok) throw new Error(`the server answers ${response.status}`);
    set({ document: (await response.json()) as OpenApi });
  } catch (error) {
    if (!signal.aborted) set({ problem: wordsOf(error) });
  }
}
