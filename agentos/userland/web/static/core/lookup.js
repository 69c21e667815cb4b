// Tables that are looked up by a word from a URL, a key or a text: they lack what every object has, such as "constructor".

/** @template T @param {Record<string, T>} entries @returns {Record<string, T>} */
export function lookup(entries) {
  return Object.assign(Object.create(null), entries);
}
