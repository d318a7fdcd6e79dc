import { describe, expect, it } from "vitest";
import type { OperationRow } from "../api/types.ts";
import { detailOf, LISTED_MAX, listed, operationOf, tookOf } from "./operations.ts";

const operation = (more: Partial<OperationRow>): OperationRow => ({
  id: "o1",
  kind: "deploy",
  name: "web",
  state: "running",
  phase: "verify waiting for GET /health: 404 for 35 s",
  result: {},
  error: {},
  namespace: "",
  created_s: 100,
  ended_s: 0,
  ...more,
});

describe("operations", () => {
  it("are listed newest first, with what events told since", () => {
    const old = operation({ id: "o0", created_s: 50, state: "done" });
    const was = operation({ id: "o1" });
    const now = operation({ id: "o1", state: "cancelled", ended_s: 130 });
    const fresh = operation({ id: "o2", created_s: 200 });
    const live = new Map([now, fresh].map((one) => [one.id, one]));
    expect(listed([was, old], live)).toEqual([fresh, now, old]);
    // The answer is newer than an event that arrived before it was asked for.
    expect(listed([now], new Map([["o1", was]]))).toEqual([now]);
  });

  it("are bounded", () => {
    const many = Array.from({ length: LISTED_MAX + 5 }, (_, at) => operation({ id: `o${at}`, created_s: at }));
    expect(listed(many, new Map())).toHaveLength(LISTED_MAX);
  });

  it("tell what they do, why they failed, or what they gave", () => {
    expect(detailOf(operation({}))).toBe("Try it: waiting for GET /health: 404 for 35 s");
    expect(detailOf(operation({ phase: "switch" }))).toBe("Switch the calls");
    expect(detailOf(operation({ state: "failed", error: { title: "No", detail: "not ready" } }))).toBe("not ready");
    expect(detailOf(operation({ state: "failed", error: {} }))).toBe("no reason given");
    expect(detailOf(operation({ state: "cancelled" }))).toBe("nothing was changed");
    expect(detailOf(operation({ state: "done", result: { revision: "web@1", switch: "cold" } }))).toBe("web@1: cold");
  });

  it("are shown beside their function: a running one first", () => {
    const failed = operation({ id: "o0", state: "failed" });
    const running = operation({ id: "o2" });
    expect(operationOf("web", failed, new Map())).toBe(failed);
    expect(operationOf("web", failed, new Map([["o2", running]]))).toBe(running);
    expect(operationOf("api", null, new Map([["o2", running]]))).toBe(null);
    const ended = operation({ id: "o2", state: "done", ended_s: 120 });
    expect(operationOf("web", running, new Map([["o2", ended]]))).toBe(ended);
  });

  it("take until their end, or until now", () => {
    expect(tookOf(operation({}), 130)).toBe(30);
    expect(tookOf(operation({ ended_s: 112 }), 130)).toBe(12);
    expect(tookOf(operation({}), 90)).toBe(0);
  });
});
