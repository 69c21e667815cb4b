// Logs: what several agents wrote, in the order of time, over all runs of the kernel.

import { attempts, connected, now } from "../core/feed.js";
import { html } from "../core/html.js";
import { adjust, route } from "../core/route.js";

const RANGES = /** @type {[string, string][]} */ ([["", "the last lines"], ["3600", "last hour"], ["86400", "last 24 hours"], ["604800", "last 7 days"]]);

/** What was chosen last, and the fields of LOGS for it: a range begins where it did when it was chosen. */
let chosen = { key: "", wanted: {} };

export function logsPage() {
  const { of = "", grep = "", range = "" } = route.get().params;
  connected.get();
  attempts.get();
  const key = JSON.stringify([of, grep, range]);
  if (chosen.key !== key) {
    const names = of.split(/[\s,]+/).filter(Boolean);
    const since = RANGES.some(([value]) => value === range) && range ? Math.floor(now() / 1000) - Number(range) : 0;
    chosen = { key, wanted: { ...(names.length ? { names } : {}), ...(grep ? { grep } : {}), since } };
  }
  const set = (/** @type {string} */ name) => (/** @type {any} */ event) => adjust({ [name]: event.target.value.trim() || null }, true);
  return html`<div class="toolbar">
      <label class="grow"><span class="hidden-text">agents</span><input id="filter" class="wide-input" placeholder="all agents, or names with spaces between" spellcheck="false" .value=${of.replaceAll(",", " ")} @change=${set("of")}></label>
      <label class="grow"><span class="hidden-text">regular expression</span><input class="wide-input" placeholder="only lines with this regular expression" spellcheck="false" .value=${grep} @change=${set("grep")}></label>
      <select aria-label="time" @change=${set("range")}>${RANGES.map(([value, word]) => html`<option value=${value} .selected=${value === range}>${word}</option>`)}</select></div>
    <os-log .view=${{ ...chosen.wanted }} .style=${"display:flex;flex-direction:column;flex:1;min-height:0"}></os-log>`;
}
