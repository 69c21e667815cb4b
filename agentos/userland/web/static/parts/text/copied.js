// Text to take away: a block that a click marks, with a button that copies it.

import { html } from "../../core/html.js";
import { toast } from "../actions.js";
import { visibleLines } from "./format.js";

/** @param {string} text */
export function copied(text) {
  return html`<div class="copied-block"><pre class="copied" tabindex="0">${visibleLines(text)}</pre><button @click=${(/** @type {Event} */ event) => copy(text, event)}>copy</button></div>`;
}

/** Copy, or mark the text where the browser has no clipboard for pages without TLS. @param {string} text @param {Event} event */
async function copy(text, event) {
  const block = /** @type {HTMLElement} */ (event.currentTarget).previousElementSibling;
  try {
    await navigator.clipboard.writeText(text);
    toast("copied");
  } catch {
    if (block) getSelection()?.selectAllChildren(block);
    toast("marked: this browser copies by Ctrl-C only here");
  }
}
