// What a change adds and removes, a line each: by sign and by tint.

import { html } from "../../core/html.js";
import { plural, visible } from "./format.js";

const TINTS = new Map([["+", "add"], ["-", "del"], ["@", "info"]]);

/** Lines of which `before` or `after` has more than the other; null if there is none. @param {string[]} before @param {string[]} after */
export function diff(before, after) {
  const lines = [...without(before, after).map((line) => `- ${line}`), ...without(after, before).map((line) => `+ ${line}`)];
  return lines.length ? signed(lines, "changes") : null;
}

/** Lines that begin with a sign, the first `most` of them. Lines of one sign that follow each other are one element. @param {string[]} lines @param {string} label @param {number} [most] */
export function signed(lines, label, most = Infinity) {
  /** @type {{sign: string, lines: string[]}[]} */
  const runs = [];
  for (const line of lines.slice(0, most)) {
    if (runs.at(-1)?.sign === line[0]) runs.at(-1)?.lines.push(visible(line));
    else runs.push({ sign: line[0], lines: [visible(line)] });
  }
  return html`<pre class="diff" aria-label=${label}>${runs.map((run) => html`<span class=${TINTS.get(run.sign) ?? ""}>${`${run.lines.join("\n")}\n`}</span>`)}${lines.length > most ? html`<span class="muted">${`and ${plural(lines.length - most, "more line")}\n`}</span>` : null}</pre>`;
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
