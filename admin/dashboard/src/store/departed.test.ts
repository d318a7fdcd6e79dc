import { expect, test } from "vitest";

import type { FunctionRow, ReplicaRow, ServerEvent } from "../api/types.ts";
import { DEPARTED_KEPT } from "./activity.ts";
import { Store } from "./store.ts";

const replica = (id: string, why = ""): ReplicaRow => ({ id, why, function: "digits", state: "ready" }) as ReplicaRow;
const put = (...items: ReplicaRow[]): ServerEvent => ({ type: "replicas", data: { items } });
const known = (): ServerEvent => ({ type: "functions", data: { items: [{ name: "digits" } as FunctionRow] } });
const gone = (...replicas: string[]): ServerEvent => ({ type: "gone", data: { functions: [], replicas } });

test("a replica that goes leaves its last words, also those that come at the last moment", () => {
  const store = new Store(() => 7_000);
  store.apply(known());
  store.apply(put(replica("a"), replica("b")));
  store.apply(put(replica("a", "killed by signal 9")));
  store.apply(gone("a", "nobody"));
  expect(store.activities.get("digits").departed).toEqual([{ replica: replica("a", "killed by signal 9"), at_s: 7 }]);
});

test("only the last few are kept, and none of a function that is gone", () => {
  const store = new Store(() => 7_000);
  store.apply(known());
  for (const id of ["1", "2", "3", "4", "5", "6", "7"]) {
    store.apply(put(replica(id)));
    store.apply(gone(id));
  }
  expect(store.activities.get("digits").departed.map(({ replica }) => replica.id)).toHaveLength(DEPARTED_KEPT);
  store.apply(put(replica("8")));
  store.apply({ type: "gone", data: { functions: ["digits"], replicas: ["8"] } });
  expect(store.activities.get("digits").departed).toEqual([]);
});
