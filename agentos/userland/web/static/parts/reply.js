// What stands where a reply will be: nothing, or the kernel's sentence if it refused.

import { html } from "../core/html.js";
import { visible } from "./text/format.js";

/** @param {import("../core/feed.js").Reply|null} reply @param {(reply: any) => unknown} show */
export function shown(reply, show) {
  if (reply === null) return html`<p class="muted" aria-busy="true"></p>`;
  if (reply.success === false) return refused(reply);
  return show(reply);
}

/** @param {import("../core/feed.js").Reply} reply */
export function refused(reply) {
  return html`<p class="bad" role="alert">${visible(reply.error)} <span class="muted">${reply.code ?? ""}</span></p>`;
}

/** @param {[string, unknown][]} pairs */
export function facts(pairs) {
  return html`<dl class="facts">${pairs.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false).map(([name, value]) => [html`<dt>${name}</dt>`, html`<dd>${value}</dd>`])}</dl>`;
}

/** JSON, folded by one level. @param {unknown} value */
export function json(value) {
  return html`<pre>${visible(JSON.stringify(value, null, 1)).replaceAll("↵", "\n")}</pre>`;
}
