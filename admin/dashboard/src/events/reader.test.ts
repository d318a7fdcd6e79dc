import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Client } from "../api/client.ts";
import { EventReader, type Connection } from "./reader.ts";

/** A server's side of one stream. */
class Stream {
  private readonly encoder = new TextEncoder();
  private controller!: ReadableStreamDefaultController<Uint8Array<ArrayBuffer>>;
  readonly body = new ReadableStream<Uint8Array<ArrayBuffer>>({ start: (controller) => void (this.controller = controller) });
  send(text: string) {
    this.controller.enqueue(this.encoder.encode(text));
  }
  end() {
    this.controller.close();
  }
}

function setUp(answer: (headers: Headers, signal: AbortSignal) => Response | Promise<Response>) {
  const connections: Connection["is"][] = [];
  const events: string[] = [];
  const lastIds: (string | null)[] = [];
  const refused = vi.fn();
  const client = new Client("k", undefined, (_url, init) => {
    const headers = new Headers(init?.headers);
    lastIds.push(headers.get("Last-Event-ID"));
    return Promise.resolve(answer(headers, init!.signal!));
  });
  const reading = {
    onEvent: (event: { type: string }) => void events.push(event.type),
    onConnection: (connection: Connection) => void connections.push(connection.is),
    onRefused: refused,
  };
  return { reader: new EventReader(client, reading, () => 1), connections, events, lastIds, refused };
}

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

const turns = () => vi.advanceTimersByTimeAsync(0);

test("a stream that ends is taken up after its last event", async () => {
  const streams = [new Stream(), new Stream()];
  let at = 0;
  const { reader, events, lastIds, connections } = setUp(() => new Response(streams[at++]!.body));
  reader.start();
  await turns();
  streams[0]!.send('event: reset\ndata: {}\n\nid: b-1\nevent: ready\ndata: {}\n\nid: b-2\nevent: gone\ndata: {}\n\nevent: beat\ndata: {}\n\n');
  await turns();
  streams[0]!.end();
  await turns();
  await vi.advanceTimersByTimeAsync(500);
  expect(events).toEqual(["reset", "ready", "gone", "beat"]);
  expect(lastIds).toEqual([null, "b-2"]);
  expect(connections).toEqual(["connecting", "reconnecting"]);
  reader.stop();
});

test("a snapshot that broke off is asked for anew", async () => {
  const streams = [new Stream(), new Stream()];
  let at = 0;
  const { reader, lastIds } = setUp(() => new Response(streams[at++]!.body));
  reader.start();
  await turns();
  streams[0]!.send("event: reset\ndata: {}\n\nid: b-1\nevent: functions\ndata: {}\n\n");
  await turns();
  streams[0]!.end();
  await vi.advanceTimersByTimeAsync(500);
  expect(lastIds).toEqual([null, null]);
  reader.stop();
});

test("what is no JSON breaks the stream off, and the event before it counts", async () => {
  const streams = [new Stream(), new Stream()];
  let at = 0;
  const { reader, lastIds } = setUp(() => new Response(streams[at++]!.body));
  reader.start();
  await turns();
  streams[0]!.send("id: b-1\nevent: ready\ndata: {}\n\nid: b-2\nevent: gone\ndata: {\n\n");
  await vi.advanceTimersByTimeAsync(500);
  expect(lastIds).toEqual([null, "b-1"]);
  reader.stop();
});

test("silence is a lost connection", async () => {
  let aborted = 0;
  const { reader, lastIds } = setUp((_headers, signal) => {
    signal.addEventListener("abort", () => (aborted += 1));
    return new Promise<Response>((_, reject) => signal.addEventListener("abort", () => reject(new DOMException("", "AbortError"))));
  });
  reader.start();
  await vi.advanceTimersByTimeAsync(10_000);
  expect(aborted).toBe(1);
  await vi.advanceTimersByTimeAsync(500);
  expect(lastIds).toHaveLength(2);
  reader.stop();
});

test("a server that is away is asked less and less often, and at once when hurried", async () => {
  const { reader, lastIds } = setUp(() => Promise.reject(new TypeError("refused")));
  reader.start();
  await turns();
  await vi.advanceTimersByTimeAsync(500 + 1000 + 2000);
  expect(lastIds).toHaveLength(4);
  reader.hurry();
  await turns();
  expect(lastIds).toHaveLength(5);
  reader.stop();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(lastIds).toHaveLength(5);
});

test("a refused key ends it", async () => {
  const { reader, connections, refused, lastIds } = setUp(() => new Response('{"detail":"the key is unknown"}', { status: 401 }));
  reader.start();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(connections).toEqual(["connecting", "refused"]);
  expect(refused).toHaveBeenCalledOnce();
  expect(lastIds).toHaveLength(1);
});
