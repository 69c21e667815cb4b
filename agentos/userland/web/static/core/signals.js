// Signals: values with a list of the effects that read them. An effect runs again, once per frame, after a value that it read has changed.
// A hidden tab gets no frames: there an effect waits until the tab is shown, unless it is one for hidden tabs, which then runs at once.

/** @typedef {{run: () => void, sources: Set<Set<any>>, hidden: boolean}} Effect */

/** @type {Effect|null} */
let reader = null;
/** @type {Set<Effect>} */
const waiting = new Set();
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

/** Run now, and again whenever a signal that it read has changed. Returns a function that ends it.
 * @param {() => void} work @param {boolean} [hidden] run it also while the tab is hidden */
export function effect(work, hidden = false) {
  /** @type {Effect} */
  const one = {
    sources: new Set(),
    hidden,
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
  if (one.hidden && document.hidden) queueMicrotask(flushHidden);
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(flush);
}

document.addEventListener("visibilitychange", flushHidden);

/** Run what waits and is for hidden tabs, if this is one. */
function flushHidden() {
  if (document.hidden) runWaiting([...waiting].filter((one) => one.hidden));
}

function flush() {
  scheduled = false;
  runWaiting([...waiting]);
}

/** @param {Effect[]} effects */
function runWaiting(effects) {
  for (const one of effects) {
    if (!waiting.delete(one)) continue; // one before it has ended it
    try {
      one.run();
    } catch (error) {
      console.error(error); // the other effects still run
    }
  }
}
