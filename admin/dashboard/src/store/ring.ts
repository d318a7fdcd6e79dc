/** Ring buffer of the last `size` numbers, oldest first; missing ones are 0. */
export class Ring {
  private readonly values: Float32Array;
  private head = 0;
  private sum = 0;

  constructor(readonly size: number) {
    this.values = new Float32Array(size);
  }

  push(value: number): void {
    this.sum += Math.fround(value) - (this.values[this.head] ?? 0);
    this.values[this.head] = value;
    this.head = (this.head + 1) % this.size;
  }

  /** Whether all numbers are 0. */
  get isFlat(): boolean {
    return Math.abs(this.sum) < 1e-9;
  }

  toArray(): number[] {
    return [...this.values.subarray(this.head), ...this.values.subarray(0, this.head)];
  }
}
