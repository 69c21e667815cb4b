// A command in an agent's jail: what it writes, as it comes, and how it ended. Only the last one is kept.

import { connected, now, stream } from "../../core/feed.js";
import { html } from "../../core/html.js";
import { signal } from "../../core/signals.js";
import { whyDisabled } from "../../parts/actions.js";
import { coloured } from "../../parts/text/ansi.js";
import { clock, elapsed, visible } from "../../parts/text/format.js";

/** @typedef {Record<string, any>} Row */
/** @typedef {{name: string, command: string, began: number, output: {error: boolean, text: string}[], kept: number, cut: boolean, reply: Row|null, withdraw: () => void}} Run */

const MAX_KEPT = 100_000; // characters of output
const TIMEOUT = 60; // seconds

const last = signal(/** @type {Run|null} */ (null));

/** @param {string} name of an agent */
export function execTab(name) {
  const run = last.get()?.name === name ? last.get() : null;
  const why = whyDisabled() || (last.get() && !last.get()?.reply ? "a command is running" : "");
  return html`<form class="toolbar" @submit=${(/** @type {Event} */ event) => start(event, name)}>
      <input name="command" class="wide-input" aria-label="command" placeholder="ls -l /workspace" autocomplete="off" spellcheck="false" required>
      <button class="primary" disabled=${Boolean(why)} title=${why || `agentos exec ${name} -- COMMAND`}>run</button></form>
    ${run ? result(run) : html`<p class="muted prose">It runs in the jail of this agent, within its limits, for ${TIMEOUT} s at most, and its files are those of the agent.</p>`}
    <p class="muted after">For a terminal: <code>agentos exec -it ${visible(name)}</code></p>`;
}

/** @param {Run} run */
function result(run) {
  clock.get();
  const { reply } = run;
  const bad = reply && (reply.success === false || reply.exit_code !== 0);
  return html`<p><span class="muted">$</span> ${visible(run.command)}</p>
    <div class="below"><span role="status" class=${bad ? "bad" : reply ? "ok" : "muted"}>${ending(reply, run)}</span>
      ${reply ? null : html`<button disabled=${!connected.get()} @click=${() => run.withdraw()}>stop</button>`}</div>
    ${run.cut ? html`<p class="muted">the beginning was left out: the last ${MAX_KEPT.toLocaleString("en")} characters are kept</p>` : null}
    <pre class="copied output" tabindex="0" aria-label="output">${run.output.map(({ error, text }) => html`<span class=${error ? "warn" : ""}>${text.split("\n").flatMap((line, index) => [index ? "\n" : null, ...coloured(line)])}</span>`)}</pre>`;
}

/** @param {Row|null} reply @param {Run} run */
function ending(reply, run) {
  if (!reply) return `runs, ${elapsed(run.began)}`;
  if (reply.success === false) return visible(reply.error);
  return reply.timed_out ? `killed: it ran longer than ${TIMEOUT} s` : `exit status ${reply.exit_code}`;
}

/** @param {Event} event @param {string} name */
function start(event, name) {
  event.preventDefault();
  const command = String(new FormData(/** @type {HTMLFormElement} */ (event.target)).get("command"));
  /** @type {Run} */
  const run = { name, command, began: now(), output: [], kept: 0, cut: false, reply: null, withdraw: () => {} };
  const end = (/** @type {Row} */ reply) => {
    run.reply ??= reply;
    last.touch();
  };
  const withdraw = stream("EXEC", { name, command, timeout: TIMEOUT, stream: true }, (chunk) => add(run, chunk), end);
  run.withdraw = () => {
    withdraw();
    end({ success: false, error: "stopped" });
  };
  last.set(run);
}

/** @param {Run} run @param {Row} chunk */
function add(run, chunk) {
  const error = chunk.stream === "stderr";
  const before = run.output.at(-1);
  if (before?.error === error && before.text.length < 4096) before.text += chunk.text;
  else run.output.push({ error, text: chunk.text });
  run.kept += chunk.text.length;
  for (; run.kept > MAX_KEPT && run.output.length > 1; run.cut = true) run.kept -= run.output.shift()?.text.length ?? 0;
  last.touch();
}
