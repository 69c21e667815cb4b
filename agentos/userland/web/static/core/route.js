// The URL's hash holds all that a person chose: page, filter, sorting, selection. So Back works, and a link shows the same.

import "./proof.js"; // takes a link's key out of the hash first
import { signal } from "./signals.js";

/** @typedef {{page: string, params: Record<string, string>}} Route */

export const route = signal(read());

addEventListener("hashchange", () => route.set(read()));

/** @returns {Route} */
function read() {
  const [page, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { page: page || "overview", params: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

/** @param {string} page @param {Record<string, string|null|undefined>} [params] */
export function link(page, params = {}) {
  const set = Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(/** @type {[string, string][]} */ (set)).toString();
  return `#/${page}${query ? `?${query}` : ""}`;
}

/** @param {string} page @param {Record<string, string|null|undefined>} [params] */
export function go(page, params = {}) {
  location.hash = link(page, params);
}

/** Change parameters of the present page; null removes one. With `quiet`, Back doesn't return to the value before.
 * @param {Record<string, string|null>} changes @param {boolean} [quiet] */
export function adjust(changes, quiet = false) {
  const now = route.peek();
  const hash = link(now.page, { ...now.params, ...changes });
  if (quiet) {
    history.replaceState(null, "", hash);
    route.set(read());
  } else {
    location.hash = hash;
  }
}
