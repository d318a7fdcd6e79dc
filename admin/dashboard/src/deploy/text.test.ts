import { expect, test } from "vitest";
import { nameFromFile, nameFromImage, numberOf, pairsOf, tomlString, wordsOf } from "./text.ts";

test("words are split as by a shell, and nothing is expanded", () => {
  expect(wordsOf("--model /models/qwen  --n 2\n--x")).toEqual(["--model", "/models/qwen", "--n", "2", "--x"]);
  expect(wordsOf(`'a b' "c d"e f\\ g`)).toEqual(["a b", "c de", "f g"]);
  expect(wordsOf(`"" '' "\\"" '\\' "\\n" "$HOME" \${PORT}`)).toEqual(["", "", '"', "\\", "\\n", "$HOME", "${PORT}"]);
  expect(wordsOf("a \\\n b")).toEqual(["a", "b"]);
  expect(wordsOf("a\\\nb")).toEqual(["ab"]);
  expect(wordsOf(`it"'"s 'say "so"'`)).toEqual(["it's", 'say "so"']);
  expect(wordsOf(" \n ")).toEqual([]);
});

test("words that do not end are refused", () => {
  expect(() => wordsOf("'a")).toThrow("closing '");
  expect(() => wordsOf('"a\\"')).toThrow('closing "');
  expect(() => wordsOf("a\\")).toThrow("after \\");
});

test("pairs are one a line, with their values as they are", () => {
  expect(pairsOf("A=1\r\n\n B = x=y \n__proto__=z", "NAME=VALUE")).toEqual(Object.fromEntries([["A", "1"], ["B", " x=y "], ["__proto__", "z"]]));
  expect(() => pairsOf("A=1\nB", "NAME=VALUE")).toThrow('line 2: expected NAME=VALUE, got "B"');
  expect(() => pairsOf("=1", "NAME=VALUE")).toThrow("line 1");
  expect(() => pairsOf("A=1\nA=2", "NAME=VALUE")).toThrow("line 2: expected another name");
});

test("numbers have their range", () => {
  expect(numberOf(" 80 ", 1, 65535, true)).toBe(80);
  expect(numberOf("", 1, 2, true)).toBeNull();
  for (const text of ["0", "65536", "1.5", "0x10", "-1", "1e3"]) expect(() => numberOf(text, 1, 65535, true)).toThrow("whole number from 1 to 65535");
  expect(numberOf("1.5", 0, 2, false)).toBe(1.5);
});

test("a string of TOML has no character that TOML refuses", () => {
  expect(tomlString('a"\\\n\x01\x7f\u20ac')).toBe('"a\\"\\\\\\n\\u0001\\u007F\u20ac"');
});

test("names come from files and images", () => {
  expect(nameFromFile("My Modèl_v2.onnx")).toBe("my-model-v2");
  expect(nameFromFile("7.onnx")).toBe("");
  expect(nameFromFile(`${"a".repeat(80)}.onnx`)).toHaveLength(63);
  expect(nameFromImage("vllm/vllm-openai:v0.33.0")).toBe("vllm-openai");
  expect(nameFromImage(`host:5000/team/web@sha256:${"0".repeat(64)}`)).toBe("web");
  expect(nameFromImage("nginx")).toBe("nginx");
  expect(nameFromImage("")).toBe("");
});
