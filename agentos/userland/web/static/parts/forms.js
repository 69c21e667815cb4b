// Forms: spawn an agent, send a message. A refusal of the kernel stands at the field that it names.

import { call } from "../core/feed.js";
import { html, render } from "../core/html.js";
import { adjust } from "../core/route.js";
import { effect, signal } from "../core/signals.js";
import { toast, whyDisabled } from "./actions.js";
import { openDialog } from "./dialog.js";
import { visible } from "./text/format.js";

/** @typedef {Record<string, any>} Row */
/** @typedef {{field: string, text: string}} Problem */

/** The field that a refusal names first, as `limits.memory: expected ...`, or the one that this belongs to. @param {Row} reply @param {string[]} fields @returns {Problem} */
export function problemOf(reply, fields) {
  const text = visible(reply.error);
  const named = /^([a-z_.]+)[^ ]*: /.exec(text)?.[1] ?? "";
  return { field: fields.find((one) => named === one) ?? fields.find((one) => named.split(".")[0] === one.split(".")[0]) ?? "", text };
}

/** @param {string} name @param {string} label @param {string} hint @param {unknown} control @param {Problem|null} problem */
function field(name, label, hint, control, problem) {
  return html`<label><span>${label}</span>${control}<span class="hint">${hint}</span>${problem?.field === name ? html`<span class="problem" role="alert">${problem.text}</span>` : null}</label>`;
}

/** Arguments of a command line: parts between spaces, quotes keep spaces. @param {string} line @returns {string[]} */
export function splitCommand(line) {
  return [...line.matchAll(/(?:"((?:\\.|[^"\\])*)"|'([^']*)'|([^\s"']))+/g)].map(([whole]) =>
    whole.replace(/"((?:\\.|[^"\\])*)"|'([^']*)'/g, (_, double, single) => (double === undefined ? single : double.replace(/\\(["\\])/g, "$1"))));
}

const LIMITS = /** @type {[string, string, string][]} */ ([["memory", "memory", "such as 256M"], ["cpu_quota", "CPU", "such as 50% of a core"], ["max_pids", "processes", "a number"], ["disk", "disk", "such as 1G, of its workspace"]]);
const SPAWN_FIELDS = ["name", "command", "script", "isolation", "network", "permissions", "restart", "max_restarts", "llm.budget", ...LIMITS.map(([name]) => `limits.${name}`)];
const PERMISSIONS = ["minimal", "readonly", "sandboxed", "standard", "unrestricted"];

/** Fields of SPAWN for what was written into the form; what is empty is the kernel's default. @param {(name: string) => string} text */
export function spawnFields(text) {
  const command = splitCommand(text("command"));
  const number = (/** @type {string} */ value) => (/^[0-9]+$/.test(value) ? Number(value) : value); // else the kernel says what it expects
  const limits = Object.fromEntries(LIMITS.filter(([name]) => text(name)).map(([name]) => [name, number(text(name))]));
  return {
    name: text("name"),
    ...(command[0]?.endsWith(".py") ? { script: command[0], args: command.slice(1) } : { command }),
    ...Object.fromEntries(["isolation", "network", "permissions", "restart"].filter((name) => text(name)).map((name) => [name, text(name)])),
    ...(text("max_restarts") ? { max_restarts: number(text("max_restarts")) } : {}),
    ...(text("tokens") ? { llm: { budget: [{ tokens: number(text("tokens")), per: text("per") }] } } : {}),
    ...(Object.keys(limits).length ? { limits } : {}),
  };
}

export function openSpawn() {
  const dialog = openDialog("spawn an agent");
  const state = signal(/** @type {{problem: Problem|null, busy: boolean}} */ ({ problem: null, busy: false }));
  const end = effect(() => {
    const { problem, busy } = state.get();
    const why = whyDisabled();
    render(html`<form class="form" @submit=${submit}>
      <h2>Spawn an agent</h2>
      ${field("name", "name", "letters, digits, . _ -", html`<input name="name" maxlength="64" autocomplete="off" required>`, problem)}
      ${field("command", "command", "a program and its arguments; quotes keep spaces together. A file that ends with .py is started as a script.", html`<input name="command" autocomplete="off" required>`, problem ? { ...problem, field: problem.field === "script" ? "command" : problem.field } : null)}
      ${field("isolation", "isolation", "which layers of the jail must be active", html`<select name="isolation"><option>standard</option><option>strict</option><option>none</option></select>`, problem)}
      ${field("network", "network", "filtered: only what its rules allow", html`<select name="network"><option>none</option><option>filtered</option><option>host</option></select>`, problem)}
      ${field("permissions", "permissions", "a level, or a set of the configuration; empty: sandboxed", html`<input name="permissions" list="levels" autocomplete="off"><datalist id="levels">${PERMISSIONS.map((one) => html`<option value=${one}></option>`)}</datalist>`, problem)}
      ${field("restart", "restart", "temporary: never; transient: after a failure; permanent: always", html`<select name="restart"><option>temporary</option><option>transient</option><option>permanent</option></select>`, problem)}
      ${field("max_restarts", "restarts within a minute", "one more, and it is given up; empty: 3", html`<input name="max_restarts" inputmode="numeric" autocomplete="off">`, problem)}
      ${field("llm.budget", "budget of tokens", "empty: the default", html`<span class="line-label"><input name="tokens" inputmode="numeric" autocomplete="off"><select name="per" aria-label="budget per"><option value="1h">per hour</option><option value="1d">per day</option></select></span>`, problem)}
      <fieldset><legend>limits, empty: the defaults</legend>${LIMITS.map(([name, label, hint]) => field(`limits.${name}`, label, hint, html`<input name=${name} autocomplete="off">`, problem))}</fieldset>
      ${problem && !problem.field ? html`<p class="problem" role="alert">${problem.text}</p>` : null}
      <div class="acts"><button class="primary" disabled=${Boolean(why) || busy} title=${why || "agentos spawn NAME COMMAND…"}>spawn</button><button type="button" @click=${() => dialog.close()}>cancel</button></div>
    </form>`, dialog);
  });
  dialog.addEventListener("close", end);
  /** @param {Event} event */
  async function submit(event) {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    const text = (/** @type {string} */ name) => String(form.get(name) ?? "").trim();
    const args = spawnFields(text);
    state.set({ problem: null, busy: true });
    const reply = await call("SPAWN", args);
    if (reply?.success === false) return state.set({ problem: problemOf(reply, SPAWN_FIELDS), busy: false });
    dialog.close();
    toast(`spawn: ${args.name}: ${reply.status}`);
    adjust({ agent: args.name });
  }
  dialog.querySelector("input")?.focus();
}

const refusedSend = signal(/** @type {(Problem & {name: string})|null} */ (null));

/** @param {string} name of the receiver */
export function sendForm(name) {
  const why = whyDisabled();
  const refused = refusedSend.get();
  return html`<form class="form" @submit=${(/** @type {Event} */ event) => send(event, name)}>
    ${field("message", "message to its mailbox", "JSON, or text", html`<textarea name="message" required></textarea>`, refused?.name === name ? refused : null)}
    <div class="acts"><button disabled=${Boolean(why)} title=${why || `agentos send ${name} …`}>send</button></div></form>`;
}

/** @param {Event} event @param {string} name */
async function send(event, name) {
  event.preventDefault();
  const form = /** @type {HTMLFormElement} */ (event.target);
  const text = String(new FormData(form).get("message"));
  let message;
  try {
    message = JSON.parse(text);
  } catch {
    message = text; // what isn't JSON is a text
  }
  const reply = await call("SEND", { to_name: name, message });
  refusedSend.set(reply?.success === false ? { name, field: "message", text: visible(reply.error) } : null);
  if (reply?.success === false) return;
  form.reset();
  toast(`send: ${visible(name)}: in its mailbox`);
}
