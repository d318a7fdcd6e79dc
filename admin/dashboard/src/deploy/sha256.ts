/**
 * SHA-256 (FIPS 180-4) of data in pieces. The browser's own takes the data as a whole, which a model may be too
 * large for, and exists only over https and on localhost.
 */
export class Sha256 {
  private readonly state = Int32Array.from(START);
  private readonly words = new Int32Array(64);
  private readonly rest = new Uint8Array(64);
  private kept = 0;
  private length = 0;

  update(data: Uint8Array): this {
    this.length += data.length;
    let at = 0;
    if (this.kept) {
      at = Math.min(64 - this.kept, data.length);
      this.rest.set(data.subarray(0, at), this.kept);
      this.kept += at;
      if (this.kept < 64) return this;
      this.block(this.rest, 0);
      this.kept = 0;
    }
    for (; at + 64 <= data.length; at += 64) this.block(data, at);
    this.rest.set(data.subarray(at));
    this.kept = data.length - at;
    return this;
  }

  /** The digest in hexadecimal digits. Ends the computation. */
  digest(): string {
    const bits = this.length * 8;
    const padding = new Uint8Array(this.kept < 56 ? 64 - this.kept : 128 - this.kept);
    padding[0] = 0x80;
    const view = new DataView(padding.buffer);
    view.setUint32(padding.length - 8, Math.floor(bits / 2 ** 32));
    view.setUint32(padding.length - 4, bits >>> 0);
    this.update(padding);
    return [...this.state].map((word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
  }

  private block(data: Uint8Array, from: number): void {
    const { state, words } = this;
    for (let t = 0; t < 16; t++) {
      const at = from + 4 * t;
      words[t] = (data[at]! << 24) | (data[at + 1]! << 16) | (data[at + 2]! << 8) | data[at + 3]!;
    }
    for (let t = 16; t < 64; t++) {
      const early = words[t - 15]!;
      const late = words[t - 2]!;
      const s0 = ((early >>> 7) | (early << 25)) ^ ((early >>> 18) | (early << 14)) ^ (early >>> 3);
      const s1 = ((late >>> 17) | (late << 15)) ^ ((late >>> 19) | (late << 13)) ^ (late >>> 10);
      words[t] = (words[t - 16]! + s0 + words[t - 7]! + s1) | 0;
    }
    // Plain variables: with arrays the digest takes several times as long.
    let a = state[0]!, b = state[1]!, c = state[2]!, d = state[3]!;
    let e = state[4]!, f = state[5]!, g = state[6]!, h = state[7]!;
    for (let t = 0; t < 64; t++) {
      const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const t1 = (h + s1 + ((e & f) ^ (~e & g)) + ROUND[t]! + words[t]!) | 0;
      const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g;
      g = f;
      f = e;
      e = (d + t1) | 0;
      d = c;
      c = b;
      b = a;
      a = (t1 + t2) | 0;
    }
    state[0]! += a;
    state[1]! += b;
    state[2]! += c;
    state[3]! += d;
    state[4]! += e;
    state[5]! += f;
    state[6]! += g;
    state[7]! += h;
  }
}

/** The first 32 bits of the fractional parts of roots of the first primes. */
function roots(count: number, root: (prime: number) => number): number[] {
  const primes: number[] = [];
  for (let n = 2; primes.length < count; n++) if (primes.every((prime) => n % prime)) primes.push(n);
  return primes.map((prime) => Math.floor((root(prime) % 1) * 2 ** 32));
}

const START = roots(8, Math.sqrt);
const ROUND = Int32Array.from(roots(64, Math.cbrt));
/** Bytes read at once: some 10 ms of work, between which the page stays responsive. */
const PIECE = 2 ** 20;

/** The digest of a file. `onBytes` gets the number of bytes of each piece. Throws AbortError, or what reading throws. */
export async function digestOf(file: Blob, signal: AbortSignal, onBytes: (count: number) => void): Promise<string> {
  const hash = new Sha256();
  for (let at = 0; at < file.size; at += PIECE) {
    signal.throwIfAborted();
    const piece = new Uint8Array(await file.slice(at, at + PIECE).arrayBuffer());
    hash.update(piece);
    onBytes(piece.length);
  }
  return hash.digest();
}
