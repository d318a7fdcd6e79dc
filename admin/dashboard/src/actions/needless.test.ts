import { expect, test } from "vitest";
import type { FunctionRow, ParkRow } from "../api/types.ts";
import { needlessOf } from "./needless.ts";

const PARK: ParkRow = { off: "", wake_ms: 2100, parked: [] };
const ASLEEP: ParkRow = { ...PARK, parked: [{ id: "r1" } as ParkRow["parked"][number]] };
const of = (state: FunctionRow["state"], park: ParkRow | null = PARK) => needlessOf({ state, park });

test("what a state makes needless", () => {
  expect(of("warm")).toEqual({ warm: "it is warm", unpark: "it is not parked" });
  expect(of("cold")).toEqual({ sleep: "it is cold", park: "it is cold", unpark: "it is not parked" });
  expect(of("parked", ASLEEP)).toEqual({ sleep: "it is parked", park: "it is parked" });
  expect(of("waking", ASLEEP)).toEqual({});
});

test("a function that is not parked says why", () => {
  expect(of("warm", { ...PARK, off: "2 went wrong" }).park).toBe("2 went wrong");
});
