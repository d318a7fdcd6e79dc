import { useState } from "react";
import { CopyText } from "../design/CopyText.tsx";
import { Marked } from "./Marked.tsx";
import { answerOf, curlOf, exampleOf, jsonOf, scopeOf, shapeOf, type Content, type OpenApi, type Route } from "./document.ts";

/** One route: a line, and below it, once opened, its parameters, bodies, answers and a curl line. */
export function Operation({ route, document }: { route: Route; document: OpenApi }) {
  const [isOpen, setOpen] = useState(false);
  const { operation } = route;
  const { scope, isOpen: isFree } = scopeOf(operation);
  return (
    <details className="route" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <span className={`method ${route.method.toLowerCase()}`}>{route.method}</span>
        <code className="route-path">{route.path}</code>
        <span className="route-what">{operation.summary}</span>
        <span className="tag">{scope ? `${scope}${isFree ? ", or no keys" : ""}` : "public"}</span>
      </summary>
      {isOpen && <Detail route={route} document={document} />}
    </details>
  );
}

function Detail({ route, document }: { route: Route; document: OpenApi }) {
  const { operation } = route;
  const answers = Object.entries(operation.responses);
  return (
    <div className="route-body">
      {operation.description && (
        <p>
          <Marked text={operation.description} />
        </p>
      )}
      {operation.parameters?.length ? (
        <div className="scrolls" tabIndex={0} role="region" aria-label={`Parameters of ${route.method} ${route.path}`}>
          <table className="plain">
            <thead>
              <tr>
                <th scope="col">parameter</th>
                <th scope="col">in</th>
                <th scope="col">type</th>
                <th scope="col">meaning</th>
              </tr>
            </thead>
            <tbody>
              {operation.parameters.map((one) => (
                <tr key={`${one.in} ${one.name}`}>
                  <td>
                    <code>{one.name}</code>
                    {one.required ? "" : " (optional)"}
                  </td>
                  <td>{one.in}</td>
                  <td>
                    <code>{shapeOf(one.schema ?? {}, document)}</code>
                  </td>
                  <td>
                    <Marked text={one.description ?? ""} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
      {operation.requestBody && (
        <>
          <h3>Body{operation.requestBody.required ? "" : " (optional)"}</h3>
          <Contents contents={operation.requestBody.content} document={document} hasExamples />
        </>
      )}
      <h3>Answers</h3>
      <ul className="answers">
        {answers.map(([status, one]) => {
          const answer = answerOf(document, one);
          return (
            <li key={status}>
              <span className={`tag status-${status[0] ?? ""}`}>{status}</span> <Marked text={answer.description ?? ""} />
              {status.startsWith("2") && answer.content && <Contents contents={answer.content} document={document} />}
            </li>
          );
        })}
      </ul>
      <CopyText label={`Command for ${route.method} ${route.path}`} text={curlOf(route, document, location.origin)} />
    </div>
  );
}

function Contents({ contents, document, hasExamples = false }: { contents: Record<string, Content>; document: OpenApi; hasExamples?: boolean }) {
  return Object.entries(contents).map(([media, content]) => (
    <div key={media} className="content">
      <code className="muted small">{media === "*/*" ? "any type" : media}</code>
      {content.schema && (
        <pre tabIndex={0} role="region" aria-label={`Type of ${media}`}>
          {shapeOf(content.schema, document)}
        </pre>
      )}
      {hasExamples && content.schema && (
        <pre tabIndex={0} role="region" aria-label={`Example of ${media}`}>
          {jsonOf(exampleOf(content, document))}
        </pre>
      )}
    </div>
  ));
}
