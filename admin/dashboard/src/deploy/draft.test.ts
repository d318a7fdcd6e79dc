import { expect, test } from "vitest";
import { EMPTY, nameOf, reachesOut, readyOf, type Draft } from "./draft.ts";

const file = (name: string) => new File(["x"], name);
const draft = (part: Partial<Draft>): Draft => ({ ...EMPTY, ...part });
const bodyOf = (part: Partial<Draft>) => {
  const found = readyOf(draft(part));
  if ("faults" in found) throw new Error(JSON.stringify(found.faults));
  return { ...found.ready, body: found.ready.bodyOf([]) };
};
const faultsOf = (part: Partial<Draft>) => {
  const found = readyOf(draft(part));
  return "faults" in found ? found.faults : {};
};

test("a model is sent without a manifest, named by its file", () => {
  const { name, what, files, body } = bodyOf({ files: [file("weights.bin"), file("My Digits.onnx")], idle_s: "60", device: "cpu" });
  expect([name, what, files.length]).toEqual(["my-digits", "My Digits.onnx", 2]);
  expect(body).toEqual({
    files: [],
    manifest: null,
    model: "My Digits.onnx",
    derived_name: true,
    breaking: false,
    overrides: { idle_s: 60, device: "cpu" },
  });
});

test("an image is the least manifest with overrides", () => {
  const { name, what, body } = bodyOf({
    way: "image",
    image: " vllm/vllm-openai:v0.33.0 ",
    port: "8000",
    args: "--model '/models/my qwen'",
    env: "A=1",
    secrets: "HF_TOKEN=hf",
    mounts: "models=/srv/models:/models",
    egress: true,
    ready: "/health",
    pull: true,
    isNext: true,
    breaking: true,
  });
  expect([name, what]).toEqual(["vllm-openai", "vllm/vllm-openai:v0.33.0"]);
  expect(body).toEqual({
    files: [],
    manifest: 'schema = 1\n[server]\nimage = "vllm/vllm-openai:v0.33.0"\n',
    model: null,
    derived_name: false,
    breaking: true,
    pull: true,
    overrides: {
      command: ["--model", "/models/my qwen"],
      port: 8000,
      ready: "/health",
      env: { A: "1" },
      secrets: { HF_TOKEN: "hf" },
      mounts: { models: "/srv/models:/models" },
      network: "egress",
    },
  });
});

test("an image needs nothing but itself, and a model's fields stay out", () => {
  const { body } = bodyOf({ way: "image", image: "nginx", files: [file("a.onnx")] });
  expect(body).toMatchObject({ model: null, overrides: {} });
  expect(body).not.toHaveProperty("pull");
  expect(bodyOf({ files: [file("a.onnx")], image: "nginx", port: "x", egress: true }).body).toMatchObject({ model: "a.onnx", overrides: {} });
});

test("each fault is beside its field", () => {
  expect(Object.keys(faultsOf({ way: "image", image: "a b", port: "0", args: "'", env: "A", secrets: "B", mounts: "C", ready: "x", idle_s: "-", max: "0", concurrency: "1.5", name: "Web" })).sort()).toEqual([
    "args", "concurrency", "env", "idle_s", "image", "max", "mounts", "name", "port", "ready", "secrets",
  ]);
  expect(faultsOf({})).toEqual({ files: expect.stringContaining("got none") });
  expect(faultsOf({ files: [file("7.onnx")] }).name).toContain("a name of");
  expect(faultsOf({ files: [file("model.pt")] }).files).toContain("got model.pt");
  expect(faultsOf({ files: [file("a.onnx"), file("b.onnx")] }).files).toContain("one .onnx file");
  expect(faultsOf({ files: [file("a.onnx"), file("w"), file("w")] }).files).toContain("different names");
  expect(faultsOf({ files: [file("a.onnx"), file("function.toml")] }).files).toContain("fnctl deploy FOLDER");
  expect(faultsOf({ files: [file("a.onnx"), ...Array.from({ length: 100 }, (_, at) => file(`${at}`))] }).files).toContain("at most 100");
});

test("a typed name wins, and what reaches out is known", () => {
  expect(nameOf(draft({ way: "image", image: "nginx", name: " web " }))).toBe("web");
  expect(reachesOut(draft({ secrets: " \n" }))).toBe(false);
  expect([{ egress: true }, { secrets: "A=b" }, { mounts: "a=/b:/c" }].map((part) => reachesOut(draft(part)))).toEqual([true, true, true]);
});
