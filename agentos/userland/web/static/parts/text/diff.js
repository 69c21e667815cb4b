// What a change adds and removes, a line each: by sign and by tint.

import { html } from "../../core/html.js";
import { visible } from "./format.js";

/** Lines of which `before` or `after` has more than the other; null if there is none. @param {string[]} before @param {string[]} after */
export function diff(before, after) {
  const lines = [...without(before, after).map((line) => ["-", "del", line]), ...without(after, before).map((line) => ["+", "add", line])];
  if (!lines.length) return null;
  return html`<pre class="diff" aria-label="changes">${lines.map(([sign, tint, line]) => html`<span class=${tint}>${`${sign} ${visible(line)}\n`}</span>`)}</pre>`;
}

/** @param {string[]} lines @param {string[]} others */
function without(lines, others) {
  const left = [...others];
  return lines.filter((line) => {
    const at = left.indexOf(line);
    if (at >= 0) left.splice(at, 1);
    return at < 0;
  });
}
