// What a person does: an inline confirmation, the call, and a toast with what the kernel said. Nothing shows before that.

import { call, connected, role } from "../core/feed.js";
import { html, keyed } from "../core/html.js";
import { signal } from "../core/signals.js";
import { plural, visible } from "./text/format.js";

/** @typedef {{call: string, word: string, effect: string, danger: boolean, line: (name: string) => string, args: (names: string[]) => Record<string, any>[]}} Action */
/** @typedef {{text: string, error: boolean, id: number}} Toast */
/** What is asked before it is done, and where on the page. @typedef {{place: string, word: string, danger: boolean, text: unknown, act: () => void}} Question */

const TOAST_MS = 6000;

const each = (/** @type {string[]} */ names) => names.map((name) => ({ name }));
const together = (/** @type {string[]} */ names) => [{ names }];

/** @type {Record<string, Action>} */
export const ACTIONS = {
  start: { call: "START", word: "start", effect: "starts", danger: false, line: (name) => `agentos start ${name}`, args: together },
  stop: { call: "STOP", word: "stop", effect: "ends, and stays down until it is started", danger: true, line: (name) => `agentos stop ${name}`, args: together },
  restart: { call: "RESTART", word: "restart", effect: "ends and starts anew", danger: true, line: (name) => `agentos restart ${name}`, args: together },
  kill: { call: "KILL", word: "kill", effect: "ends for good; an agent of the configuration until it is started", danger: true, line: (name) => `agentos kill ${name}`, args: each },
  pause: { call: "PAUSE", word: "pause", effect: "is frozen with all its processes", danger: false, line: (name) => `agentos pause ${name}`, args: each },
  resume: { call: "RESUME", word: "resume", effect: "goes on", danger: false, line: (name) => `agentos resume ${name}`, args: each },
};

export const toasts = signal(/** @type {Toast[]} */ ([]));
/** The question that is open. */
export const asked = signal(/** @type {Question|null} */ (null));

let lastToast = 0;

/** @param {string} text @param {boolean} [error] an error stays until it is closed */
export function toast(text, error = false) {
  lastToast += 1;
  const id = lastToast;
  toasts.set([...toasts.peek(), { text, error, id }].slice(-5));
  if (!error) setTimeout(() => dismiss(id), TOAST_MS);
}

/** @param {number} id */
function dismiss(id) {
  toasts.set(toasts.peek().filter((one) => one.id !== id));
}

export function toastList() {
  return toasts.get().map((one) =>
    keyed(one.id, html`<div class=${one.error ? "toast error" : "toast"} role=${one.error ? "alert" : "status"}>
      <span>${one.text}</span><button class="quiet" @click=${() => dismiss(one.id)}>close</button>
    </div>`),
  );
}

/** Why the buttons are disabled now; "" if they aren't. */
export function whyDisabled() {
  if (!connected.get()) return "the kernel is not reachable";
  return role.get() === "operator" ? "" : `this is the link of ${role.get() === "approver" ? "an approver" : "a viewer"}: \`agentos dashboard\` prints one that acts`;
}

/** Why this session can't decide approvals; "" if it can. */
export function whyUndecided() {
  return connected.get() && role.get() === "approver" ? "" : whyDisabled();
}

/** Which actions make sense for an agent. @param {Record<string, any>} row */
export function possible(row) {
  if (row.state === "paused") return ["resume", "kill", "stop"];
  if (["stopped", "exited", "failed"].includes(row.state)) return ["start"];
  return ["restart", "pause", "stop", "kill"];
}

/** A button that asks before it acts. @param {string} action @param {string[]} names @param {string} place */
export function actionButton(action, names, place) {
  const why = whyDisabled();
  const chosen = ACTIONS[action];
  return html`<button disabled=${Boolean(why)} title=${why || chosen.line(names.length === 1 ? names[0] : "NAME…")}
    @click=${() => askAbout(action, names, place)}>${chosen.word}</button>`;
}

/** Ask whether to act on agents. @param {string} action @param {string[]} names @param {string} place */
export function askAbout(action, names, place) {
  const { word, effect, danger } = ACTIONS[action];
  const many = names.length > 1;
  const shown = names.slice(0, 12).map((name) => html`<li class="cut">${visible(name)}</li>`);
  const text = many ? html`<p>${plural(names.length, "agent")}: each ${effect}.</p><ul>${shown}${names.length > 12 ? html`<li class="muted">and ${names.length - 12} more</li>` : null}</ul>` : html`<p>${visible(names[0])} ${effect}.</p>`;
  asked.set({ place, word: many ? `${word} ${names.length}` : word, danger, text, act: () => act(action, names) });
}

/** The confirmation at this place, if it is open there. @param {string} place */
export function confirmation(place) {
  const open = asked.get();
  if (!open || open.place !== place) return null;
  const why = whyDisabled();
  const confirm = () => {
    asked.set(null);
    open.act();
  };
  return html`<div class="confirm" role="alertdialog" aria-label=${`confirm ${open.word}`}>${open.text}
    <div class="acts">
      <button class=${open.danger ? "danger" : "primary"} disabled=${Boolean(why)} title=${why || null} data-autofocus @click=${confirm}>${open.word}</button>
      <button @click=${() => asked.set(null)}>cancel</button>
    </div>
  </div>`;
}

/** @param {string} action @param {string[]} names */
async function act(action, names) {
  const chosen = ACTIONS[action];
  const replies = await Promise.all(chosen.args(names).map((args) => call(chosen.call, args)));
  const errors = replies.filter((reply) => reply?.success === false);
  for (const reply of errors.slice(0, 3)) toast(visible(reply.error), true);
  if (!errors.length) toast(`${chosen.word}: ${names.length === 1 ? visible(names[0]) : plural(names.length, "agent")}: done`);
}
