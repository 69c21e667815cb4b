// What is asked for once for each key and run of the kernel, when it is first shown; one call after the other, as a page makes 16 at a time at most.

import { boot, connected } from "../core/feed.js";
import { signal } from "../core/signals.js";

const MOST = 1000; // values that are kept

/** A function that returns the value of a key, undefined while it isn't known. `load` returns undefined if the kernel wasn't reachable.
 * @template T, V @param {(of: T) => Promise<V|undefined>} load @returns {(key: string, of: T) => V|undefined} */
export function askOnce(load) {
  /** @type {Map<string, V|undefined>} */
  const values = new Map();
  const changed = signal(0);
  let turn = Promise.resolve();
  return (word, of) => {
    changed.get();
    const key = `${boot.get()} ${word}`;
    if (values.has(key) || !connected.get()) return values.get(key);
    if (values.size >= MOST) values.clear();
    values.set(key, undefined);
    turn = turn.then(async () => {
      const value = await load(of);
      if (value === undefined) values.delete(key);
      else values.set(key, value);
      changed.set(changed.peek() + 1);
    });
    return undefined;
  };
}
