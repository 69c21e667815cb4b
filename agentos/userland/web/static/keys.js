// The keys of the page: what each does, unless it is pressed in a field or a dialog.

import { agents } from "./core/feed.js";
import { adjust, go, route } from "./core/route.js";
import { approvalKey } from "./pages/approvals.js";
import { toggleFollow } from "./pages/events.js";
import { asked, possible } from "./parts/actions.js";
import { asTable, zoom } from "./parts/charts.js";
import { openKeys, openPalette, singleKeys } from "./parts/palette.js";

/** Pages by the key that opens them after g. @type {Record<string, string>} */
let pagesByKey = {};
let going = false;

/** @param {Record<string, string>} pages pages by the key that opens them after g */
export function listenToKeys(pages) {
  pagesByKey = pages;
  addEventListener("keydown", pressed);
}

/** @param {KeyboardEvent} event */
function pressed(event) {
  if (event.key === "k" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    return openPalette();
  }
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.key === "Escape") return escape(target);
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, select, textarea, dialog")) return;
  if (!singleKeys() && event.key !== "?") return;
  if (press(event.key)) event.preventDefault();
}

/** @param {HTMLElement} target */
function escape(target) {
  if (target.closest("dialog")) return;
  if (asked.peek()) asked.set(null);
  else if (target.matches("input")) target.blur();
  else if (route.peek().params.agent) adjust({ agent: null, tab: null });
}

/** @param {string} key @returns {boolean} whether it was one of the page's */
function press(key) {
  const { page, params } = route.peek();
  const wasGoing = going;
  going = key === "g" && !going;
  if (wasGoing && pagesByKey[key]) {
    go(pagesByKey[key]);
    return true;
  }
  if (page === "approvals" && approvalKey(key)) return true;
  const actions = /** @type {Record<string, () => void>} */ ({
    ":": openPalette,
    "?": openKeys,
    "/": () => document.getElementById("filter")?.focus(),
    "[": () => zoom(-1),
    "]": () => zoom(1),
    t: () => asTable.set(!asTable.peek()),
    f: () => (page === "events" ? toggleFollow() : undefined),
    l: () => params.agent && adjust({ tab: "logs" }),
    o: () => params.agent && go("agent", params),
    K: () => question("kill"),
    R: () => question("restart"),
    p: () => question("pause"),
  });
  if (!actions[key]) return false;
  actions[key]();
  return true;
}

/** Ask whether to act on the selected agent. @param {string} action */
function question(action) {
  const name = route.peek().params.agent;
  const row = [...agents.peek().values()].find((one) => one.name === name);
  if (!row) return;
  const chosen = action === "pause" && row.state === "paused" ? "resume" : action;
  if (possible(row).includes(chosen)) asked.set({ action: chosen, names: [row.name], place: `panel ${row.name}` });
}
