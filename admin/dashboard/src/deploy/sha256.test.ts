import { expect, test } from "vitest";
import { digestOf, Sha256 } from "./sha256.ts";

const native = async (data: Uint8Array<ArrayBuffer>) =>
  [...new Uint8Array(await crypto.subtle.digest("SHA-256", data))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

test("the known digests", () => {
  const of = (text: string) => new Sha256().update(new TextEncoder().encode(text)).digest();
  expect(of("")).toBe("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  expect(of("abc")).toBe("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
});

test("every length around a block, in pieces of every size, has the digest of the platform", async () => {
  for (let length = 0; length <= 200; length++) {
    const data = Uint8Array.from({ length }, (_, at) => (at * 37 + length) & 255);
    const hash = new Sha256();
    const piece = 1 + (length % 97);
    for (let at = 0; at < length; at += piece) hash.update(data.subarray(at, at + piece));
    expect(hash.digest()).toBe(await native(data));
  }
});

test("a file is read in pieces, which are counted", async () => {
  const data = new Uint8Array(2.5 * 2 ** 20).fill(7);
  const pieces: number[] = [];
  const digest = await digestOf(new Blob([data]), new AbortController().signal, (count) => pieces.push(count));
  expect(digest).toBe(await native(data));
  expect(pieces).toEqual([2 ** 20, 2 ** 20, 2 ** 19]);
});

test("an aborted digest ends", async () => {
  const stop = new AbortController();
  const reading = digestOf(new Blob([new Uint8Array(3 * 2 ** 20)]), stop.signal, () => stop.abort());
  await expect(reading).rejects.toMatchObject({ name: "AbortError" });
});
