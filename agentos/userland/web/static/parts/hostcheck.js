// A check of the host in a child process of the kernel: `agentos doctor`, `agentos audit verify`. It is an EXEC like any other.

import { call, commands, now } from "../core/feed.js";
import { html } from "../core/html.js";
import { signal } from "../core/signals.js";
import { whyDisabled } from "./actions.js";
import { elapsed, visible } from "./text/format.js";

/** @typedef {Record<string, any>} Row */
/** `found` is what the command printed as JSON; `problem` says why there is nothing.
 * @typedef {{began: number, found: Row|null, problem: string}} Check */

const TIMEOUT = 600; // seconds: a large audit log is read at 100 MB/s

/** @type {Record<string, ReturnType<typeof signal<Check|null>>>} */
const checks = { doctor: signal(/** @type {Check|null} */ (null)), verify: signal(/** @type {Check|null} */ (null)) };

/** @param {"doctor"|"verify"} name @param {string} word @param {string} line of the CLI @param {(found: Row) => unknown} show */
export function hostCheck(name, word, line, show) {
  const check = checks[name].get();
  const runs = Boolean(check && !check.found && !check.problem);
  const why = whyDisabled() || (runs ? "it is running" : "");
  return html`<div class="toolbar"><button disabled=${Boolean(why)} title=${why || line} @click=${() => run(name)}>${word}</button>
      <span class="muted" role="status">${runs && check ? `runs, ${elapsed(check.began)}` : check?.found ? `ran ${elapsed(check.began)} ago` : html`<code>${line}</code>`}</span></div>
    ${check?.problem ? html`<p class="bad" role="alert">${visible(check.problem)}</p>` : null}
    ${check?.found ? show(check.found) : null}`;
}

/** @param {"doctor"|"verify"} name */
async function run(name) {
  const began = now();
  checks[name].set({ began, found: null, problem: "" });
  const reply = await call("EXEC", { command: commands.peek()[name], timeout: TIMEOUT });
  if (reply?.success === false) return checks[name].set({ began, found: null, problem: reply.error ?? "" });
  try {
    checks[name].set({ began, found: JSON.parse(reply.stdout), problem: "" });
  } catch {
    checks[name].set({ began, found: null, problem: `exit status ${reply.exit_code}: ${reply.stderr || reply.stdout || "no output"}` });
  }
}
