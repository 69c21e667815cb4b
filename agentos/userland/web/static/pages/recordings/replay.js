// A sealed replay of a recorded life: what it finds of each call stands beside the recorded one, as the column "now".

import { boot, call } from "../../core/feed.js";
import { html } from "../../core/html.js";
import { signal } from "../../core/signals.js";
import { whyDisabled } from "../../parts/actions.js";
import { refused } from "../../parts/reply.js";
import { signed } from "../../parts/text/diff.js";
import { number, plural, visible, visibleLines } from "../../parts/text/format.js";
import { opened } from "../trace.js";

/** @typedef {Record<string, any>} Row */
/** `of`: recording, life and run of the kernel. `reply`: of REPLAY_STATUS, or the refusal. `calls`: those that were made again, by their number.
 * @typedef {{of: string, agent: string, reply: Row|null, calls: Map<number, Row>}} Replay */

const POLL_MS = 500;
const MAX_SHOWN = 50; // differences of one call
const TINTS = /** @type {Record<string, string>} */ ({ identical: "ok", drifted: "warn" });
/** What a column says, by word and sign. */
const SIGNS = /** @type {Record<string, [string, string]>} */ ({ exact: ["=", "ok"], masked: ["≈", "ok"], drifted: ["~", "warn"], diverged: ["≠", "bad"] });
const UNSEEN = ["NOOP", "HELLO", "CANCEL", "EXIT"]; // they say nothing, and aren't compared
const current = signal(/** @type {Replay|null} */ (null));

/** @param {string} name @param {string} life */
function find(name, life) {
  const now = current.get();
  return now?.of === keyOf(name, life) ? now : null;
}

/** @param {string} name @param {string} life */
function keyOf(name, life) {
  return JSON.stringify([name, life, boot.get()]);
}

/** The button, and what was found. @param {Row} reply a life */
export function replayPart(reply) {
  const { recording, life } = reply;
  const now = find(recording, life);
  const runs = Boolean(now && (now.reply === null || now.reply.state === "RUNNING"));
  const why = whyDisabled() || (reply.replayable ? "" : `it can't be replayed: ${visible(reply.why)}`);
  return html`<div class="toolbar"><button disabled=${Boolean(why) || runs} title=${why || `agentos replay ${recording} ${life}`} @click=${() => begin(recording, life)}>replay</button>
      ${runs && now?.agent ? html`<button @click=${() => call("REPLAY_STOP", { name: now.agent })}>stop</button>` : null}
      <span class="muted" role="status">${runs ? `runs, ${number(Math.round(100 * (now?.reply?.progress ?? 0)))} %` : "sealed: no model is asked, no command runs, nothing leaves"}</span></div>
    ${now?.reply && !runs ? verdict(now.reply) : null}`;
}

/** @param {Row} reply */
function verdict(reply) {
  if (reply.success === false) return refused(reply);
  const word = reply.verdict ?? "stopped";
  const masks = Object.entries(reply.masks ?? {}).map(([name, count]) => `${visible(name)} (${count})`).join(", ");
  return html`<section role="status" class="after"><p><b class=${TINTS[word] ?? "bad"}>${word}</b> <span class="muted">${number(reply.entries_replayed)} of ${plural(reply.total_entries - reply.entries_skipped, "call")}${masks ? `; equal after masks: ${masks}` : ""}${reply.sealed ? `; ${plural(reply.sealed, "attempt")} to reach the network refused` : ""}</span></p>
    ${reply.error ? html`<p class="bad">${visible(reply.error)}</p>` : null}
    ${reply.divergence ? html`<pre>${visibleLines(reply.divergence)}</pre>` : null}
    ${reply.notes.map((/** @type {string} */ note) => html`<p class="muted">${visible(note)}</p>`)}</section>`;
}

/** What the column says of a call, null without a replay. @param {Row} reply a life @returns {((entry: Row) => unknown)|null} */
export function nowColumn(reply) {
  const now = find(reply.recording, reply.life);
  if (!now || now.reply?.success === false || now.reply?.verdict === "can't") return null;
  const over = now.reply !== null && now.reply.state !== "RUNNING";
  return (entry) => {
    const made = now.calls.get(entry.id);
    if (!made) return over && !UNSEEN.includes(entry.call) ? html`<span class="muted">not made</span>` : null;
    const [sign, tint] = SIGNS[made.how] ?? ["?", ""];
    return html`<span class=${tint}>${sign} ${made.how}</span>`;
  };
}

/** The words of a call that differ. @param {Row} life @param {Row} entry */
export function differencesOf(life, entry) {
  const made = find(life.recording, life.life)?.calls.get(entry.id);
  if (!made?.differences.length) return null;
  return html`<h3>now it differs: ${made.how}</h3>${made.differences.slice(0, MAX_SHOWN).map((/** @type {Row} */ one) => html`<p><span class="chip">${one.kind}</span> ${visible(one.where)}</p>${signed([`- ${one.recorded}`, `+ ${one.now}`], "recorded and now")}`)}
    ${made.differences.length > MAX_SHOWN ? html`<p class="muted">and ${plural(made.differences.length - MAX_SHOWN, "more difference")}</p>` : null}`;
}

/** @param {string} name @param {string} life */
async function begin(name, life) {
  const mine = { of: keyOf(name, life), agent: "", reply: /** @type {Row|null} */ (null), calls: new Map() };
  current.set(mine);
  const begun = await call("REPLAY_START", { path: name, agent: life });
  if (begun.success === false) return show({ ...mine, reply: begun }, mine.of);
  for (;;) {
    const reply = await call("REPLAY_STATUS", { name: begun.name, calls: true });
    const calls = new Map((reply.calls ?? []).map((/** @type {Row} */ one) => [one.n, one]));
    if (!show({ ...mine, agent: begun.name, reply, calls }, mine.of)) return;
    if (reply.state !== "RUNNING") break;
    await new Promise((done) => setTimeout(done, POLL_MS));
  }
  const diverged = [...(current.peek()?.calls.values() ?? [])].find((one) => one.how === "diverged");
  if (diverged) opened.set(diverged.n);
}

/** Show it unless another one was begun; whether it is shown. @param {Replay} replay @param {string} of */
function show(replay, of) {
  if (current.peek()?.of !== of) return false;
  current.set(replay);
  return true;
}
