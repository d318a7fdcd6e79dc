import type { ConnectedClient, FunctionDetail, FunctionRow, Why } from "../../api/types.ts";
import { ago, clockTime, count } from "../../design/format.ts";
import { useSecond } from "../../store/clock.ts";
import { useSite } from "../../store/hooks.ts";
import { ownerOf, toldOf } from "./connections.ts";

const KINDS = { websocket: "WebSocket", events: "stream", request: "request" } as const;

/** Who is connected to a server function, and why it is awake. The server lists 50 at most. */
export function ConnectionsPanel({ line, detail, why }: { line: FunctionRow; detail: FunctionDetail; why: Why | null }) {
  if (!why?.connections) return null;
  const { counting, free } = why.connections;
  const items = why.connected ?? [];
  const told = toldOf(line, detail, why);
  const more = counting + free - items.length;
  return (
    <section className="panel connections-panel" aria-labelledby="connections-title">
      <div className="panel-head">
        <h2 id="connections-title">Connections</h2>
        <span className="tag">{count(counting + free)} open</span>
      </div>
      <div className="panel-body connections-told">
        <p role="status">
          <b>{told.lead}</b> {told.ignored}
        </p>
        {told.advice.map((text) => (
          <p key={text} className="small muted">
            {text.split("`").map((part, at) => (at % 2 ? <code key={at}>{part}</code> : part))}
          </p>
        ))}
      </div>
      {items.length > 0 && <List items={items} />}
      {more > 0 && <p className="panel-body small muted connections-more">and {count(more)} more</p>}
    </section>
  );
}

function List({ items }: { items: readonly ConnectedClient[] }) {
  const { store } = useSite();
  useSecond();
  const now_s = store.serverNow_s();
  return (
    <ol className="happenings connections" tabIndex={0} aria-label="Open exchanges: first what keeps it awake, longest first">
      {items.map((item, at) => (
        <li key={`${item.since_s} ${item.path} ${at}`}>
          <time title={`since ${clockTime(item.since_s)}`}>{ago(now_s - item.since_s)}</time>
          <span>
            <span className="tag">{KINDS[item.kind]}</span> {!item.counts && <span className="tag">free</span>} {ownerOf(item)}
            <br />
            <span className="mono muted">{item.path}</span>
          </span>
        </li>
      ))}
    </ol>
  );
}
