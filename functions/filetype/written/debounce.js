// Calls that come in a burst become one, made when the burst is over.
export function debounce(call, quietMs) {
  let timer = null;
  let latest = [];

  function run() {
    timer = null;
    call(...latest);
  }

  return (...values) => {
    latest = values;
    if (timer !== null) clearTimeout(timer);
    timer = setTimeout(run, quietMs);
  };
}

export class Store extends EventTarget {
  #state;

  constructor(state) {
    super();
    this.#state = Object.freeze({ ...state });
  }

  get state() {
    return this.#state;
  }

  update(change) {
    const before = this.#state;
    this.#state = Object.freeze({ ...before, ...change });
    this.dispatchEvent(new CustomEvent("change", { detail: { before, now: this.#state } }));
  }
}
