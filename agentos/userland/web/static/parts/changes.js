// The reply of DIFF, put in order: what is applied with all, what only when it is named, conflicts, what never is; and what differs between two.

/** @typedef {Record<string, any>} Row */
/** `commits` are of the git repository whose data `root` is. @typedef {{root: string, why: string, changes: Row[], commits: Row[]}} Obeyed */

const MAX_OPEN = 300; // lines of all texts that are shown without being asked for

/** The changes in the groups that APPLY treats differently: a conflict that programs obey is in both. @param {Row} reply */
export function grouped({ changes, commits }) {
  /** @type {Map<string, Obeyed>} */
  const obeyed = new Map();
  for (const one of changes.filter((/** @type {Row} */ change) => change.obeyed && !change.blocked)) {
    /** @type {Obeyed} */
    const group = obeyed.get(one.root) ?? { root: one.root, why: one.obeyed, changes: [], commits: commits.filter((/** @type {Row} */ commit) => [commit.repository, ".git"].filter(Boolean).join("/") === one.root) };
    group.changes.push(one);
    obeyed.set(one.root, group);
  }
  return {
    plain: /** @type {Row[]} */ (changes.filter((/** @type {Row} */ one) => !one.obeyed && !one.conflict && !one.blocked)),
    conflicts: /** @type {Row[]} */ (changes.filter((/** @type {Row} */ one) => one.conflict && !one.blocked)),
    obeyed: [...obeyed.values()],
    blocked: /** @type {Row[]} */ (changes.filter((/** @type {Row} */ one) => one.blocked)),
  };
}

/** How many changes APPLY is to make with these choices. @param {Row} reply @param {Set<string>} also @param {Map<string, string>} resolve */
export function countApplied({ changes }, also, resolve) {
  return changes.filter((/** @type {Row} */ one) => !one.blocked && (!one.obeyed || also.has(one.root)) && (!one.conflict || resolve.get(one.path) === "ours")).length;
}

/** What differs in a later reply, in words by path. @param {Row} before @param {Row} after @returns {[string, string][]} */
export function differences(before, after) {
  const old = new Map(before.changes.map((/** @type {Row} */ one) => [one.path, JSON.stringify(one)]));
  const present = new Map(after.changes.map((/** @type {Row} */ one) => [one.path, JSON.stringify(one)]));
  return [
    ...[...present].filter(([path, text]) => old.get(path) !== text).map(([path]) => /** @type {[string, string]} */ ([path, old.has(path) ? "is another change now" : "was not there"])),
    ...[...old.keys()].filter((path) => !present.has(path)).map((path) => /** @type {[string, string]} */ ([path, "is no change any more"])),
  ];
}

/** The lines of a change's text; null where it has none. @param {Row} change @returns {string[]|null} */
export function linesOf({ diff }) {
  return typeof diff === "string" && diff ? diff.replace(/\n$/, "").split("\n") : null;
}

/** The paths whose texts are open at first: short ones, until there is enough to read. @param {Row[]} changes */
export function firstOpen(changes) {
  let left = MAX_OPEN;
  /** @type {Set<string>} */
  return new Set(changes.filter((one) => {
    const lines = linesOf(one)?.length ?? Infinity;
    if (lines > left) return false;
    left -= lines;
    return true;
  }).map((one) => one.path));
}
