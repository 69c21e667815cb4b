// The palette (Ctrl-K or :) and the list of keys (?), as dialogs.

import { agents } from "../core/feed.js";
import { html, keyed, render } from "../core/html.js";
import { go } from "../core/route.js";
import { askAbout, possible } from "./actions.js";
import { openDialog } from "./dialog.js";
import { openSpawn } from "./forms.js";
import { visible } from "./text/format.js";
import { stateWord } from "./state.js";

/** @typedef {{text: string, hint: string, run: () => void}} Choice */

const MOST = 40;
export const PAGES = ["overview", "agents", "tree", "trace", "model", "approvals", "events", "logs", "audit", "system"];

/** @type {HTMLDialogElement|null} */
let dialog = null;
let query = "";
let at = 0;

export function openPalette() {
  query = "";
  at = 0;
  dialog = openDialog("go to or run");
  draw();
  dialog?.querySelector("input")?.focus();
}

/** @returns {Choice[]} */
function choices() {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  /** @type {Choice[]} */
  const all = PAGES.map((page) => ({ text: page, hint: "page", run: () => go(page) }));
  all.push({ text: "spawn an agent", hint: "agentos spawn", run: openSpawn });
  for (const row of agents.peek().values()) {
    all.push({ text: row.name, hint: stateWord(row.state), run: () => go("agents", { agent: row.name }) });
    if (!words.length) continue;
    for (const action of possible(row)) {
      all.push({ text: `${action} ${row.name}`, hint: `agentos ${action} ${row.name}`, run: () => { go("agents", { agent: row.name }); askAbout(action, [row.name], `panel ${row.name}`); } });
    }
  }
  return all.filter((one) => words.every((word) => one.text.toLowerCase().includes(word))).slice(0, MOST);
}

function draw() {
  if (!dialog) return;
  const found = choices();
  at = Math.max(0, Math.min(found.length - 1, at));
  render(html`<input role="combobox" aria-expanded="true" aria-controls="choices" aria-label="agent, page or action" placeholder="agent, page or action" .value=${query}
      @input=${(/** @type {any} */ event) => { query = event.target.value; at = 0; draw(); }}
      @keydown=${(/** @type {KeyboardEvent} */ event) => press(event, found)}>
    <ul class="choices" id="choices" role="listbox" aria-label="choices">${found.map((one, index) => keyed(one.text, html`<li role="option" aria-selected=${String(index === at)} @click=${() => run(one)}><span class="cut">${visible(one.text)}</span><span class="muted cut">${visible(one.hint)}</span></li>`))}</ul>`, dialog);
  dialog.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" });
}

/** @param {KeyboardEvent} event @param {Choice[]} found */
function press(event, found) {
  if (event.key === "ArrowDown") at += 1;
  else if (event.key === "ArrowUp") at -= 1;
  else if (event.key === "Enter" && found[at]) return run(found[at]);
  else return;
  event.preventDefault();
  draw();
}

/** @param {Choice} choice */
function run(choice) {
  dialog?.close();
  choice.run();
}

const KEYS = [
  ["Ctrl-K or :", "palette"], ["/", "filter"], ["g o a t r m p e l u s", "go to Overview Agents Tree tRace Model apProvals Events Logs aUdit System"], ["j k", "next, previous"],
  ["Enter, o", "panel, page of its own"], ["Esc", "close"], ["x", "mark"], ["l", "logs"], [".", "actions of the open agent"], ["Shift-K Shift-R p", "kill, restart, pause or resume, after a question"], ["[ ]", "window of charts"], ["t", "charts as tables"], ["f", "follow"],
];

export function openKeys() {
  const box = openDialog("keys");
  render(html`<dl class="keys" tabindex="0">${KEYS.map(([key, what]) => [html`<dt><kbd>${key}</kbd></dt>`, html`<dd>${what}</dd>`])}
    <dt></dt><dd><label><input type="checkbox" .checked=${singleKeys()} @change=${(/** @type {any} */ event) => localStorage.setItem("agentos-keys", event.target.checked ? "on" : "off")}> keys of a single letter work</label></dd></dl>`, box);
}

/** Whether keys of a single letter are on (WCAG 2.1.4). */
export function singleKeys() {
  return localStorage.getItem("agentos-keys") !== "off";
}
