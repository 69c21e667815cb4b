// Signals: values with a list of the effects that read them. An effect runs again, once per frame, after a value that it read has changed.

/** @typedef {{run: () => void, sources: Set<Set<any>>}} Effect */

/** @type {Effect|null} */
let reader = null;
/** @type {Set<Effect>} */
let waiting = new Set();
let scheduled = false;

/** @template T @param {T} value */
export function signal(value) {
  /** @type {Set<Effect>} */
  const readers = new Set();
  return {
    /** @returns {T} */
    get() {
      if (reader) {
        readers.add(reader);
        reader.sources.add(readers);
      }
      return value;
    },
    /** @returns {T} */
    peek() {
      return value;
    },
    /** @param {T} next */
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const one of readers) schedule(one);
    },
    /** The value was changed in place. */
    touch() {
      for (const one of readers) schedule(one);
    },
  };
}

/** Run now, and again whenever a signal that it read has changed. Returns a function that ends it. @param {() => void} work */
export function effect(work) {
  /** @type {Effect} */
  const one = {
    sources: new Set(),
    run() {
      release(one);
      const before = reader;
      reader = one;
      try {
        work();
      } finally {
        reader = before;
      }
    },
  };
  one.run();
  return () => {
    waiting.delete(one);
    release(one);
  };
}

/** @param {Effect} one */
function release(one) {
  for (const readers of one.sources) readers.delete(one);
  one.sources.clear();
}

/** @param {Effect} one */
function schedule(one) {
  waiting.add(one);
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(flush);
}

function flush() {
  scheduled = false;
  const now = waiting;
  waiting = new Set();
  for (const one of now) {
    try {
      one.run();
    } catch (error) {
      console.error(error); // the other effects still run
    }
  }
}
