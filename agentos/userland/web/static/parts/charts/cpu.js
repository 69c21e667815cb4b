// CPU use of agents in cores: the difference of two readings of the feed.

/** @type {Map<number, {at: number, seconds: number, cores: number|null}>} */
const last = new Map();

/** @param {Record<string, any>} row @returns {number|null} */
export function cores(row) {
  const before = last.get(row.id);
  if (row.cpu_seconds === null || row.cpu_seconds === undefined) return null;
  const at = performance.now() / 1000;
  if (!before || row.cpu_seconds < before.seconds) {
    last.set(row.id, { at, seconds: row.cpu_seconds, cores: null });
    return null;
  }
  if (at - before.at < 1.5) return before.cores;
  const used = (row.cpu_seconds - before.seconds) / (at - before.at);
  last.set(row.id, { at, seconds: row.cpu_seconds, cores: used });
  return used;
}
