// Approvals: one at a time, large; the others are the queue beside it. Keys work only a moment after an item has appeared.

import { approvals, call, connected, now } from "../core/feed.js";
import { html, keyed } from "../core/html.js";
import { adjust, route } from "../core/route.js";
import { signal } from "../core/signals.js";
import { toast, whyDisabled, whyUndecided } from "../parts/actions.js";
import { countdown, exactTime, plural, visible } from "../parts/text/format.js";

/** @typedef {Record<string, any>} Row */

const GONE = "its caller is gone: it can't be allowed any more";
const SETTLE_MS = 500; // no key and no click decides on what has only just appeared or moved
const FIRST_LINES = 16; // of a text, and characters of a line, that are shown before it is opened
const FIRST_CHARS = 300;
/** What is shown, where its buttons are on the page, and since when. */
const steady = { what: "", at: 0 };
const denying = signal(0);
const remembering = signal(0);
const anyPath = signal(false);
const opened = signal(0);
/** What was decided here and still waits, by id. */
const decided = signal(/** @type {Map<number, string>} */ (new Map()));

export function approvalsPage() {
  const queue = approvals.get();
  if (!queue.length) return html`<p class="block empty">Nothing waits for a person. Where a rule says <code>ask</code>, the call appears here.</p>`;
  const current = currentOf(queue);
  requestAnimationFrame(settled);
  return html`<div class="desk">
    <nav class="queue block" aria-label="waiting calls"><ul>${queue.map((one) => keyed(one.id, html`<li><button aria-current=${one.id === current.id ? "true" : "false"} @click=${() => adjust({ id: String(one.id) }, true)}>
      <span class="cut">${visible(one.path || one.agent)} <span class="muted">${one.call}</span></span><span class="muted cut">${decided.get().get(one.id) ?? (one.caller_present ? countdown(one.expires_at) : "gone")} ${plural(one.lines.length, "line")}: ${visible(firstQuoted(one))}</span></button></li>`))}</ul></nav>
    ${keyed(current.id, item(current))}
  </div>`;
}

/** Whether nothing of the current item has changed or moved for half a second. The user's own scrolling doesn't count. */
function settled() {
  const box = document.querySelector(".approval .acts")?.getBoundingClientRect();
  const main = document.getElementById("main");
  const place = box ? [box.left, box.top + (main?.scrollTop ?? 0) + window.scrollY, box.width].map(Math.round) : [];
  const what = [currentOf(approvals.peek())?.id, opened.peek(), remembering.peek(), denying.peek(), ...place].join(" ");
  if (what !== steady.what) Object.assign(steady, { what, at: performance.now() });
  return performance.now() - steady.at >= SETTLE_MS;
}

addEventListener("resize", settled);

/** What the first line of its text quotes. @param {Row} one @returns {string} */
export function firstQuoted(one) {
  return one.lines[0]?.at(-1) ?? "";
}

/** @param {Row} one */
function isLong(one) {
  return one.lines.length > FIRST_LINES || one.lines.some((/** @type {string[]} */ [, quoted]) => quoted?.length > FIRST_CHARS);
}

/** @param {Row[]} queue */
function currentOf(queue) {
  return queue.find((one) => String(one.id) === route.get().params.id) ?? queue[0];
}

/** @param {Row} one */
function item(one) {
  const done = decided.get().get(one.id);
  const why = whyUndecided() || (done ? `${done} already` : "");
  const whyNot = why || (one.caller_present ? "" : GONE) || (isLong(one) && opened.get() !== one.id ? "show all of it first" : "");
  const total = Math.max(1, one.expires_at - one.asked_at);
  countdown(one.expires_at);
  const left = Math.max(0, one.expires_at - now() / 1000);
  return html`<article class="block approval" aria-label=${`approval ${one.id}`}>
    <div><h2>${visible(one.path || one.agent)} asks: ${one.call}</h2><p class="muted">asked ${exactTime(one.asked_at)} by the rule <q class="rule">${visible(one.rule)}</q>${one.caller_present ? "" : html`; <span class="warn">${GONE}</span>`}</p></div>
    ${shownText(one)}
    <div><div class="deadline"><i .style=${`width:${((100 * left) / total).toFixed(1)}%`}></i></div><p class="muted">expires in ${countdown(one.expires_at) || "a moment"}</p></div>
    <div class="acts">
      <button class="primary" disabled=${Boolean(whyNot)} title=${whyNot || `agentos approve ${one.id}${isLong(one) ? ` --digest ${one.digest.slice(0, 12)}` : ""}`} @click=${() => decide(one, true)}>allow once (a)</button>
      <button disabled=${Boolean(whyNot || whyDisabled())} title=${whyNot || whyDisabled() || `agentos approve ${one.id} --remember agent`} @click=${() => remember(remembering.peek() === one.id ? 0 : one.id)}>remember… (r)</button>
      <button class="danger" disabled=${Boolean(why)} title=${why || `agentos deny ${one.id}`} @click=${() => startDenying(one.id)}>deny (d)</button>
      ${done ? html`<span class="pending" role="status">${done}; the kernel has yet to confirm it</span>` : null}
    </div>
    ${remembering.get() === one.id && one.caller_present ? html`<div class="confirm"><p class="prose">The answer is remembered for what follows, and revoked by <code>agentos permissions forget</code>:</p>
      <div class="shown-text">${(anyPath.get() ? [one.covers_any_path] : one.covers).map((/** @type {string[]} */ [words, quoted]) => line(words, quoted, true))}</div>
      ${one.covers_any_path.length ? html`<label class="line-label"><input type="checkbox" .checked=${anyPath.get()} @change=${() => anyPath.set(!anyPath.peek())}> any path of this origin</label>` : null}<div class="acts">
      <button disabled=${Boolean(whyNot)} @click=${() => decide(one, true, { remember: "agent", any_path: anyPath.peek() })}>allow while this agent lives</button><button disabled=${Boolean(whyNot)} @click=${() => decide(one, true, { remember: "always", any_path: anyPath.peek() })}>allow always</button><button @click=${() => remember(0)}>cancel</button></div></div>` : null}
    ${denying.get() === one.id ? html`<form class="confirm" @keydown=${(/** @type {KeyboardEvent} */ event) => event.key === "Escape" && denying.set(0)} @submit=${(/** @type {Event} */ event) => { event.preventDefault(); decide(one, false, { reason: String(new FormData(/** @type {HTMLFormElement} */ (event.target)).get("reason")) }); }}>
      <label>reason, which the agent is told <input name="reason" class="reason" maxlength="400"></label>
      <div class="acts"><button class="danger">deny</button><button type="button" @click=${() => denying.set(0)}>cancel</button></div></form>` : null}
  </article>`;
}

/** The kernel's words and what they quote, in separate elements. A long text is shown in part, with a count, until it is opened. @param {Row} one */
function shownText(one) {
  const whole = opened.get() === one.id || !isLong(one);
  const lines = whole ? one.lines : one.lines.slice(0, FIRST_LINES);
  const hidden = one.lines.length - lines.length;
  return html`<div><div class="shown-text">${lines.map((/** @type {string[]} */ [words, quoted]) => line(words, quoted, whole))}</div>
    ${whole ? null : html`<button class="open-text" @click=${() => opened.set(one.id)}>show all of it${hidden ? `: ${plural(hidden, "more line")}` : ""}, ${plural(one.shown.length, "character")}</button>`}</div>`;
}

/** @param {string} words @param {string|undefined} quoted @param {boolean} whole */
function line(words, quoted, whole) {
  if (quoted === undefined) return html`<div class="said">${visible(words)}</div>`;
  const kept = whole ? quoted : quoted.slice(0, FIRST_CHARS);
  const sign = words.trim();
  const tint = sign === "+" ? "add" : sign === "-" ? "del" : "";
  return html`<div class=${`quoting ${sign.length > 14 ? "below-words" : ""}`}><span class="words">${sign}</span><code class=${`quoted ${tint}`}>${visible(kept)}</code>${kept.length < quoted.length ? html`<span class="words more">… ${plural(quoted.length - kept.length, "more character")}</span>` : null}</div>`;
}

/** @param {number} id of the item, 0 for none */
function remember(id) {
  anyPath.set(false);
  remembering.set(id);
}

/** @param {Row} one @param {boolean} allow @param {Row} [more] */
async function decide(one, allow, more = {}) {
  if (!settled()) return toast("nothing was decided: the page had changed less than half a second before");
  denying.set(0);
  remember(0);
  const { reason, ...rest } = more;
  note(one.id, allow ? "allowed" : "denied");
  const reply = await call("DECIDE", { id: one.id, allow, digest: one.digest, ...rest, ...(reason ? { reason } : {}) });
  if (reply?.success === false) {
    note(one.id, "");
    toast(visible(reply.error), true);
  } else toast(`${allow ? "allowed" : "denied"}: ${visible(one.path || one.agent)} ${one.call}`);
}

/** Keep what was decided about items that still wait. @param {number} id @param {string} what */
function note(id, what) {
  const waiting = new Set(approvals.peek().map((one) => one.id));
  const kept = new Map([...decided.peek()].filter(([one]) => waiting.has(one) && one !== id));
  decided.set(what ? kept.set(id, what) : kept);
}

/** @param {number} id */
function startDenying(id) {
  denying.set(id);
  requestAnimationFrame(() => /** @type {HTMLElement?} */ (document.querySelector(".approval [name=reason]"))?.focus());
}

/** Keys of this page; one that is held down decides no more than once. @param {KeyboardEvent} event @returns {boolean} whether it was one */
export function approvalKey({ key, repeat }) {
  const queue = approvals.peek();
  if (!queue.length || !connected.peek() || !["a", "r", "d", "j", "k"].includes(key)) return false;
  const current = currentOf(queue);
  const at = queue.indexOf(current);
  if (key === "j" || key === "k") {
    const next = queue[Math.max(0, Math.min(queue.length - 1, at + (key === "j" ? 1 : -1)))];
    adjust({ id: String(next.id) }, true);
  } else if (repeat || !settled() || whyUndecided() || (key === "r" && whyDisabled()) || decided.peek().has(current.id) || (key !== "d" && !current.caller_present)) {
    return true;
  } else if (key !== "d" && isLong(current) && opened.peek() !== current.id) {
    toast("not allowed: show all of it first");
  } else if (key === "a") {
    decide(current, true);
  } else if (key === "d") {
    startDenying(current.id);
  } else {
    remember(current.id);
  }
  return true;
}
