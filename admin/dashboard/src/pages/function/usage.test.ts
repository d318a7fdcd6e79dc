import { describe, expect, it } from "vitest";
import type { UsageItem } from "../../api/types.ts";
import { KEYS_MAX, keyWords, moreKeys, usagePath } from "./usage.ts";

const one: UsageItem = { key: "0123456789ab", note: "", removed: false, tokens_in: 1, tokens_out: 1, calls: 1, unknown: 0 };

describe("usage of a function", () => {
  it("is asked for by key", () => {
    expect(usagePath("chat", "7d")).toBe("/usage?by=key&since=7d&function=chat");
  });

  it("names keys by their label, else by their id", () => {
    expect(keyWords({ ...one, note: "the shop" })).toBe("the shop");
    expect(keyWords(one)).toBe("key 0123456789ab");
    expect(keyWords({ ...one, removed: true })).toBe("key 0123456789ab, removed");
    expect(keyWords({ ...one, key: "" })).toBe("no key");
    expect(keyWords({ ...one, key: "_others", removed: true })).toBe("others");
  });

  it("counts the keys that are not listed, here and at the server", () => {
    const items = Array.from({ length: KEYS_MAX + 2 }, () => one);
    expect(moreKeys({ items, left_out: 5 })).toBe(7);
    expect(moreKeys({ items: [one], left_out: 0 })).toBe(0);
  });
});
