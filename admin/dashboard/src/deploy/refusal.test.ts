import { expect, test } from "vitest";
import { Problem } from "../api/problem.ts";
import { factsOf, logOf, remedyOf } from "./refusal.ts";

const problem = (code: string, detail = "", more = {}) => new Problem(422, code, "Refused", detail, more);

test("a reason that names an option of fnctl gets the form's own remedy", () => {
  expect(remedyOf(problem("refused", "server.port: expected a port, as x exposes none; name one: --port N"))).toBe("Fill in the field Port.");
  expect(remedyOf(problem("wrong_scope"))).toContain("fnctl key add --scope admin");
  expect(remedyOf(problem("conflict", "the name 'a' was derived from the file's name"))).toContain("next revision");
  expect(remedyOf(problem("conflict", "something else"))).toBe("");
  expect(remedyOf(problem("refused", "server.image: cannot pull x"))).toContain("docker login");
  expect(remedyOf(problem("model_refused", "it is not an ONNX model"))).toBe("");
  expect(remedyOf(new Problem(0, "unreachable", "No answer", "the server cannot be reached"))).toContain("kept");
});

test("the whole reason is shown, in the document's order of importance", () => {
  const found = problem("bad_manifest", "d", { got: 7, expected: "a port", type: "urn:x", breaks: ["a", "b"], stage: "", log_tail: ["one", "two"] });
  expect(factsOf(found)).toEqual([["expected", "a port"], ["got", "7"], ["breaks", "a; b"]]);
  expect(logOf(found.more)).toEqual(["one", "two"]);
  expect(logOf(problem("x", "", { log_tail: "no list" }).more)).toEqual([]);
});
