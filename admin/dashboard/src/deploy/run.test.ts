import { expect, test } from "vitest";
import { Client } from "../api/client.ts";
import { Problem } from "../api/problem.ts";
import { EMPTY, readyOf, type Draft, type Ready } from "./draft.ts";
import { DeployDesk, type Run } from "./run.ts";
import type { Upload } from "./upload.ts";

type Answer = Response | Error | (() => Response | Promise<Response>);

const json = (data: unknown, status = 200) => new Response(JSON.stringify(data), { status });
const operation = (state: string, phase: string, more = {}) => json({ id: "op1", kind: "deploy", name: "digits", state, phase, ...more });
const gone = () => new Response(null, { status: 404 });

/** A desk whose server gives these answers in turn. */
function desk(answers: Answer[], upload: Upload = async (_client, _path, file, onBytes) => onBytes(file.size)) {
  const asked: string[] = [];
  const bodies: unknown[] = [];
  const client = new Client("k", undefined, async (input, init = {}) => {
    asked.push(`${init.method} ${String(input).replace("/admin/v1", "")}`);
    if (init.body) bodies.push(JSON.parse(String(init.body)));
    const answer = answers.shift();
    if (!answer) throw new Error(`no answer for ${asked.at(-1)}`);
    if (answer instanceof Error) throw answer;
    return typeof answer === "function" ? answer() : answer;
  });
  let now = 0;
  const one = new DeployDesk(client, { upload, now_ms: () => (now += 10), pause: async () => {} });
  const seen: Run[] = [];
  one.subscribe(() => one.run && seen.push(one.run));
  return { one, asked, bodies, seen, end: () => one.run! };
}

function ready(part: Partial<Draft> = { files: [new File(["weights"], "digits.onnx")] }): Ready {
  const found = readyOf({ ...EMPTY, ...part });
  if ("faults" in found) throw new Error(JSON.stringify(found));
  return found.ready;
}

const IMAGE: Partial<Draft> = { way: "image", image: "nginx:1.27" };

test("a file is hashed, uploaded once, and deployed; the phases become steps", async () => {
  const { one, asked, bodies, end } = desk([
    gone,
    operation("running", "upload"),
    operation("running", "verify"),
    operation("running", "switch"),
    operation("done", "switch", { result: { revision: "digits@1", created: true } }),
  ]);
  await one.start(ready());
  const sha256 = asked[0]!.slice("HEAD /blobs/".length, -"?size=7".length);
  expect(sha256).toMatch(/^[0-9a-f]{64}$/);
  expect(asked.slice(1)).toEqual([
    "POST /functions/digits/revisions",
    "GET /operations/op1?wait=20&phase=upload",
    "GET /operations/op1?wait=20&phase=verify",
    "GET /operations/op1?wait=20&phase=switch",
  ]);
  expect(bodies[0]).toMatchObject({ files: [{ path: "digits.onnx", size: 7, sha256 }], model: "digits.onnx", manifest: null });
  expect(end()).toMatchObject({ state: "done", operation: "op1", problem: null, result: { revision: "digits@1" } });
  expect(end().steps.map(({ name }) => name)).toEqual(["read", "send", "accept", "upload", "verify", "switch"]);
  expect(end().steps.every(({ ms }) => ms !== null)).toBe(true);
});

test("a file that the server has is not sent again", async () => {
  let uploads = 0;
  const { one, end } = desk([new Response(null), operation("done", "switch")], async () => void (uploads += 1));
  await one.start(ready());
  expect([uploads, end().state]).toEqual([0, "done"]);
});

test("an image has nothing to upload, and the share of its pull is seen", async () => {
  const { one, seen, asked } = desk([
    operation("running", "image"),
    operation("running", "pull 35 % of 1.2 GiB"),
    operation("done", "switch"),
  ]);
  await one.start(ready(IMAGE));
  expect(asked[0]).toBe("POST /functions/nginx/revisions");
  expect(seen.some(({ steps }) => steps.at(-1)?.name === "pull" && steps.at(-1)?.share === 0.35)).toBe(true);
});

test("a refusal at once and one by the trial have the whole problem", async () => {
  const refused = { title: "function.toml was refused", detail: "server.port: expected 1 to 65535, got 0", code: "bad_manifest", expected: "1 to 65535", got: 0 };
  const first = desk([json(refused, 422)]);
  await first.one.start(ready(IMAGE));
  expect(first.end().steps.map(({ name }) => name)).toEqual(["accept"]);
  expect(first.end()).toMatchObject({ state: "failed", operation: "", problem: { status: 422, code: "bad_manifest", more: { got: 0 } } });

  const failed = { status: 422, title: "The model was refused", detail: "it is not an ONNX model", code: "model_refused", log_tail: ["a"] };
  const second = desk([operation("running", "verify"), operation("failed", "verify", { error: failed })]);
  await second.one.start(ready(IMAGE));
  expect(second.end()).toMatchObject({ state: "failed", problem: { code: "model_refused", more: { log_tail: ["a"] } } });
});

test("an upload that is cancelled ends at once and starts nothing", async () => {
  const upload: Upload = (_client, _path, _file, onBytes, signal) =>
    new Promise((_, reject) => {
      signal.addEventListener("abort", () => reject(new DOMException("", "AbortError")));
      onBytes(3);
    });
  const { one, asked, seen, end } = desk([gone], upload);
  const stop = one.subscribe(() => {
    if (one.run?.steps.at(-1)?.text === "3 B of 7 B") {
      stop();
      void one.cancel();
    }
  });
  await one.start(ready());
  expect(end()).toMatchObject({ state: "cancelled", isSending: false, problem: null });
  expect(asked).toHaveLength(1);
  expect(seen.some(({ isSending }) => isSending)).toBe(true);
});

test("an operation is cancelled by the server, also while it is being accepted", async () => {
  const running = desk([
    operation("running", "verify"),
    async () => {
      void running.one.cancel();
      return operation("running", "verify");
    },
    json({}),
    operation("cancelled", "verify"),
  ]);
  await running.one.start(ready(IMAGE));
  expect(running.asked).toContain("DELETE /operations/op1");
  expect(running.end().state).toBe("cancelled");

  const accepted = desk([
    async () => {
      void accepted.one.cancel();
      return operation("running", "image");
    },
    json({}),
    operation("cancelled", "image"),
  ]);
  await accepted.one.start(ready(IMAGE));
  expect(accepted.asked).toEqual(["POST /functions/nginx/revisions", "DELETE /operations/op1", "GET /operations/op1?wait=20&phase=image"]);
  expect(accepted.end().state).toBe("cancelled");
});

test("a server that is away for a while resumes; one that stays away is told", async () => {
  const back = desk([operation("running", "verify"), new TypeError("x"), json({ code: "shutting_down" }, 503), operation("done", "switch")]);
  await back.one.start(ready(IMAGE));
  expect(back.end().state).toBe("done");

  const away = desk([operation("running", "verify"), ...Array.from({ length: 61 }, () => new TypeError("x"))]);
  await away.one.start(ready(IMAGE));
  expect(away.end()).toMatchObject({ state: "lost", problem: { status: 0, code: "unreachable" } });
  expect(away.asked).toHaveLength(62);
});

test("what was not sent has failed, and what was sent without an answer is not known", async () => {
  const before = desk([new TypeError("x")]);
  await before.one.start(ready());
  expect(before.end()).toMatchObject({ state: "failed", problem: { status: 0 } });
  const after = desk([new TypeError("x")]);
  await after.one.start(ready(IMAGE));
  expect(after.end()).toMatchObject({ state: "lost", problem: { status: 0 } });
  for (const answer of [json({ code: "supervisor_away" }, 503), new Response("<h1>Bad Gateway</h1>", { status: 502 })]) {
    const between = desk([answer]);
    await between.one.start(ready(IMAGE));
    expect(between.end().state).toBe("lost");
  }
  const removed = desk([gone]);
  await removed.one.resume("op1");
  expect(removed.end()).toMatchObject({ state: "lost", problem: { status: 404 } });
});

test("a file that was changed after it was chosen is told so", async () => {
  const file = new File(["weights"], "digits.onnx");
  file.slice = () => ({ arrayBuffer: () => Promise.reject(new DOMException("", "NotReadableError")) }) as unknown as Blob;
  const { one, end, asked } = desk([]);
  await one.start(ready({ files: [file] }));
  expect(end()).toMatchObject({ state: "failed", problem: { code: "unreadable", detail: expect.stringContaining("choose it again") } });
  expect(asked).toEqual([]);
});

test("an operation of an earlier page is followed; another kind is not", async () => {
  const found = desk([operation("running", "verify"), operation("done", "switch", { result: { revision: "digits@2", created: true } })]);
  await found.one.resume("op1");
  expect(found.asked[0]).toBe("GET /operations/op1");
  expect(found.end()).toMatchObject({ name: "digits", state: "done" });
  const rollback = desk([operation("running", "warm", { kind: "rollback" })]);
  await rollback.one.resume("op1");
  expect(rollback.end().problem).toBeInstanceOf(Problem);
});

test("an ended deploy can be dismissed, a running one cannot", async () => {
  const { one } = desk([
    async () => {
      one.dismiss();
      expect(one.run?.state).toBe("running");
      return operation("done", "switch");
    },
  ]);
  await one.start(ready(IMAGE));
  one.dismiss();
  expect(one.run).toBeNull();
});
