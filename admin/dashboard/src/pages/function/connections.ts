import type { ConnectedClient, FunctionDetail, FunctionRow, Why } from "../../api/types.ts";
import { count, plural } from "../../design/format.ts";
import { exactly } from "../../timeline/words.ts";

/** Max characters of a path in advice. */
const PATH_MAX = 60;
const NOUNS = { websocket: "WebSocket", events: "event stream", request: "request" } as const;

/** What the page says about a server function that is awake or asleep. */
export interface Told {
  /** Why it is awake, or what wakes it. */
  lead: string;
  /** What keeps nothing awake: "ignored: 3 WebSockets"; "" without any. */
  ignored: string;
  /** Settings of function.toml that change it, between backticks. */
  advice: string[];
}

/** The open exchanges in words. Needs a server function. */
export function toldOf(line: FunctionRow, detail: FunctionDetail, why: Why): Told {
  const open = why.connections ?? { counting: 0, free: 0 };
  const items = why.connected ?? [];
  return {
    lead: leadOf(line, detail, why.awake ?? "", open.counting),
    ignored: ignoredOf(items, open.free),
    advice: line.state === "cold" || line.state === "parked" ? asleepAdvice(detail) : adviceOf(line, items, open.counting),
  };
}

/** The label of the key that an exchange came with. */
export function ownerOf({ note, key }: ConnectedClient): string {
  return note || (key ? `key ${key}` : "no key");
}

function leadOf(line: FunctionRow, detail: FunctionDetail, awake: string, counting: number): string {
  if (line.state === "cold") return `Asleep, woken by: ${wakersOf(detail)}.`;
  if (line.state === "parked") return `Asleep in host memory, woken by: ${wakersOf(detail)}.`;
  if (line.state === "failing") return "It fails to start; see its reason above.";
  const least = line.min > 0 ? `its minimum of ${plural(line.min, "replica")} keeps it awake` : "";
  if (counting > 0) return sentence([awake, least]);
  if (least) return sentence([least]);
  if (line.state === "waking") return "Waking: calls are held until it is ready.";
  return `Nothing open keeps it awake. It sleeps after ${exactly(line.idle_s)} without use.`;
}

function wakersOf({ server }: FunctionDetail): string {
  const rules = server?.paths.wake ?? [];
  return rules.length ? rules.join(", ") : "every request";
}

function ignoredOf(items: readonly ConnectedClient[], free: number): string {
  if (!free) return "";
  const shown = items.filter((item) => !item.counts);
  if (shown.length < free) return `Ignored: ${count(free)} exchanges.`;
  const kinds = (["websocket", "events", "request"] as const)
    .map((kind) => [kind, shown.filter((item) => item.kind === kind).length] as const)
    .filter(([, n]) => n > 0);
  return `Ignored: ${kinds.map(([kind, n]) => plural(n, NOUNS[kind])).join(", ")}.`;
}

function adviceOf(line: FunctionRow, items: readonly ConnectedClient[], counting: number): string[] {
  if (!counting) return [];
  const advice: string[] = [];
  const first = (kind: ConnectedClient["kind"]) => items.find((item) => item.counts && item.kind === kind);
  if (first("websocket")) advice.push('`limits.websockets = "ignore"` lets it sleep beside open WebSockets, which then wake nothing either.');
  const events = first("events");
  if (events) advice.push(`\`server.free = [${JSON.stringify(events.path.slice(0, PATH_MAX))}]\` lets it sleep beside that event stream.`);
  if (first("request")) advice.push("`server.wake` names the requests that count as use; others keep nothing awake.");
  if (line.min > 0) advice.push("`scaling.min = 0` lets it sleep.");
  return advice;
}

function asleepAdvice({ server, exchange }: FunctionDetail): string[] {
  const advice: string[] = [];
  if (exchange?.websockets === "ignore") advice.push("WebSockets do not wake it.");
  if (!server?.paths.wake.length) advice.push("`server.wake` names the requests that wake it, where a page that is left open polls.");
  return advice;
}

function sentence(parts: readonly string[]): string {
  const text = parts.filter(Boolean).join(", and ");
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}
