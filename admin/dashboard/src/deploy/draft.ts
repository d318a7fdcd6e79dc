import type { BundleEntry, DeployRequest } from "../api/types.ts";
import { FieldError, isName, nameFromFile, nameFromImage, NAME_RULE, numberOf, pairsOf, tomlString, wordsOf } from "./text.ts";

export const DEVICES = ["", "cpu", "cuda", "any"] as const;
export type Way = "model" | "image";

/** What the form holds, as typed. */
export interface Draft {
  way: Way;
  /** "" for the name that the file or the image gives. */
  name: string;
  files: readonly File[];
  image: string;
  port: string;
  args: string;
  env: string;
  ready: string;
  pull: boolean;
  secrets: string;
  mounts: string;
  egress: boolean;
  idle_s: string;
  max: string;
  concurrency: string;
  device: (typeof DEVICES)[number];
  /** The deploy may make the next revision of a function that exists. */
  isNext: boolean;
  /** It may break current callers. */
  breaking: boolean;
}

export const EMPTY: Draft = {
  way: "model",
  name: "",
  files: [],
  image: "",
  port: "",
  args: "",
  env: "",
  ready: "",
  pull: false,
  secrets: "",
  mounts: "",
  egress: false,
  idle_s: "",
  max: "",
  concurrency: "",
  device: "",
  isNext: false,
  breaking: false,
};

/** A deploy that can start: its files are hashed and uploaded first. */
export interface Ready {
  name: string;
  /** The image, or the model's file name. */
  what: string;
  files: readonly File[];
  bodyOf: (files: BundleEntry[]) => Partial<DeployRequest>;
}

export type FieldName = "name" | "files" | "image" | "port" | "args" | "env" | "ready" | "secrets" | "mounts" | "idle_s" | "max" | "concurrency";
export type Faults = Partial<Record<FieldName, string>>;

const FILES_MAX = 100;
const isModel = (file: File): boolean => /\.onnx$/i.test(file.name);

/** The function's name: as typed, or from the file or the image; "" for none. */
export function nameOf(draft: Draft): string {
  const typed = draft.name.trim();
  if (typed) return typed;
  if (draft.way === "image") return nameFromImage(draft.image.trim());
  const model = draft.files.find(isModel);
  return model ? nameFromFile(model.name) : "";
}

/** Whether the image gets more than its own container: these need the scope admin. */
export function reachesOut(draft: Draft): boolean {
  return draft.egress || draft.secrets.trim() !== "" || draft.mounts.trim() !== "";
}

/** The deploy that the form stands for, or the faults by field. The server checks everything again. */
export function readyOf(draft: Draft): { ready: Ready } | { faults: Faults } {
  const faults: Faults = {};
  const read = <T>(field: FieldName, parse: () => T): T | undefined => {
    try {
      return parse();
    } catch (error) {
      if (!(error instanceof FieldError)) throw error;
      faults[field] = error.message;
      return undefined;
    }
  };
  const name = nameOf(draft);
  const overrides: Record<string, unknown> = {
    idle_s: read("idle_s", () => numberOf(draft.idle_s, 0, 31_536_000, false)),
    max: read("max", () => numberOf(draft.max, 1, 1000, true)),
    device: draft.device || null,
  };
  const files = draft.way === "model" ? modelFiles(draft, faults) : [];
  if (draft.way === "image") Object.assign(overrides, imageOverrides(draft, faults, read));
  // Without a source there is no name to be derived, which its own fault says.
  if (!isName(name) && (name || !(faults.files || faults.image))) faults.name = `expected ${NAME_RULE}; got ${JSON.stringify(name)}`;
  if (Object.keys(faults).length) return { faults };
  const given = Object.fromEntries(Object.entries(overrides).filter(([, value]) => value !== null)) as DeployRequest["overrides"];
  const shared = { derived_name: !draft.isNext, breaking: draft.breaking, overrides: given };
  const image = draft.image.trim();
  const own =
    draft.way === "image"
      ? { manifest: manifestOf(image), model: null, ...(draft.pull ? { pull: true as const } : {}) }
      : { manifest: null, model: files.find(isModel)!.name };
  const what = draft.way === "image" ? image : files.find(isModel)!.name;
  return { ready: { name, what, files, bodyOf: (wire) => ({ files: wire, ...own, ...shared }) } };
}

/** The least function.toml of an image; everything else goes as overrides, as `fnctl deploy` sends it. */
export function manifestOf(image: string): string {
  return `schema = 1\n[server]\nimage = ${tomlString(image)}\n`;
}

function modelFiles({ files }: Draft, faults: Faults): readonly File[] {
  const models = files.filter(isModel);
  const names = files.map((file) => file.name);
  if (models.length !== 1) {
    const got = names.slice(0, 3).join(", ") || "none";
    faults.files = `expected one .onnx file, and the files of its external data if it has any; got ${got}`;
  } else if (files.length > FILES_MAX) faults.files = `expected at most ${FILES_MAX} files, got ${files.length}`;
  else if (new Set(names).size < names.length) faults.files = "expected files with different names";
  else if (names.includes("function.toml")) faults.files = "a folder with function.toml is deployed by fnctl deploy FOLDER";
  return files;
}

type Read = <T>(field: FieldName, parse: () => T) => T | undefined;

function imageOverrides(draft: Draft, faults: Faults, read: Read): Record<string, unknown> {
  const image = draft.image.trim();
  if (!image || /\s/.test(image)) faults.image = `expected an image such as nginx:1.27, got ${JSON.stringify(image.slice(0, 60))}`;
  const ready = draft.ready.trim();
  if (ready && !/^\/[!"$-~]*$/.test(ready)) faults.ready = "expected a path that begins with / and has no spaces";
  const pairs = (field: "env" | "secrets" | "mounts", form: string) => {
    const found = read(field, () => pairsOf(draft[field], form));
    return found && Object.keys(found).length ? found : null;
  };
  const words = read("args", () => wordsOf(draft.args));
  return {
    command: words?.length ? words : null,
    port: read("port", () => numberOf(draft.port, 1, 65_535, true)),
    ready: ready || null,
    env: pairs("env", "NAME=VALUE"),
    secrets: pairs("secrets", "VARIABLE=SECRET"),
    mounts: pairs("mounts", "NAME=SOURCE:TARGET, or NAME=SOURCE:TARGET:rw"),
    network: draft.egress ? "egress" : null,
    concurrency: read("concurrency", () => numberOf(draft.concurrency, 1, 10_000, true)),
  };
}
