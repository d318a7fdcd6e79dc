import { expect, test } from "vitest";
import { functionHash, hashOf, hostHash, routeOf } from "./hash.ts";

test("addresses name pages", () => {
  expect(routeOf("").page).toBe("overview");
  expect(routeOf("#/?q=a&state=warm").query.get("state")).toBe("warm");
  expect(routeOf("#/timeline?hours=24").page).toBe("timeline");
  expect(routeOf("#/deploy?operation=a").page).toBe("deploy");
  expect(routeOf("#/docs").page).toBe("docs");
  expect(routeOf("#/host/gpu2")).toMatchObject({ page: "host", name: "gpu2" });
  expect(routeOf("#/fn/digits?x=1")).toMatchObject({ page: "function", name: "digits" });
});

test("what is no address of ours is nowhere", () => {
  for (const hash of ["#/fn/", "#/fn/a/b", "#/fn/%zz", "#/else", "#key"]) expect(routeOf(hash).page).toBe("nowhere");
});

test("a name survives the way into an address and back", () => {
  expect(routeOf(functionHash("a/b c?"))).toMatchObject({ page: "function", name: "a/b c?" });
  expect(routeOf(hostHash("a/b c?"))).toMatchObject({ page: "host", name: "a/b c?" });
});

test("only what is set is in the address", () => {
  expect(hashOf("/", { q: "", sort: "-rate" })).toBe("#/?sort=-rate");
  expect(hashOf("/", {})).toBe("#/");
});
