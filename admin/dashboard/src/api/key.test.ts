import { expect, test } from "vitest";
import { keyOf } from "./key.ts";

test("a key is read from its fragment and from no other", () => {
  expect(keyOf("#key=fn_a-b%2Fc")).toBe("fn_a-b/c");
  for (const other of ["", "#/", "#key=", "#key=%zz", "#/fn/key=a"]) expect(keyOf(other)).toBe(null);
});
