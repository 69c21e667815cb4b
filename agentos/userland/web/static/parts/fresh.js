// Values that have just changed, which the page tints for a moment.

const FADE_MS = 600;
const FORGOTTEN_MS = 4000; // what wasn't in view for so long may have changed long ago
const MOST = 5000;

/** @type {Map<string, {value: unknown, changed: number, looked: number}>} */
const seen = new Map();

/** The class of a value that differs from the one drawn before: "fresh", else "". @param {string} key @param {unknown} value */
export function fresh(key, value) {
  const at = performance.now();
  const before = seen.get(key);
  if (!before || at - before.looked > FORGOTTEN_MS) {
    if (seen.size >= MOST) seen.clear();
    seen.set(key, { value, changed: -Infinity, looked: at });
    return "";
  }
  before.looked = at;
  if (before.value !== value) {
    before.value = value;
    before.changed = at;
  }
  return at - before.changed < FADE_MS ? "fresh" : "";
}
