// Approvals: one at a time, large; the others are the queue beside it. Keys work only a moment after an item has appeared.

import { approvals, call, connected, now, whyUntold } from "../core/feed.js";
import { html, keyed } from "../core/html.js";
import { adjust, route } from "../core/route.js";
import { signal } from "../core/signals.js";
import { UNTOLD, toast, whyDisabled } from "../parts/actions.js";
import { countdown, exactTime, visible } from "../parts/format.js";

/** @typedef {Record<string, any>} Row */

const GONE = "its caller is gone: it can't be allowed any more";
const SETTLE_MS = 400; // no key decides on an item that has only just appeared
const shownSince = { id: 0, at: 0 };
const denying = signal(0);
const remembering = signal(0);

export function approvalsPage() {
  const queue = approvals.get();
  if (whyUntold()) return html`<p class="block empty">${UNTOLD}</p>`;
  if (!queue.length) return html`<p class="block empty">Nothing waits for a person. Where a rule says <code>ask</code>, the call appears here.</p>`;
  const current = currentOf(queue);
  if (shownSince.id !== current.id) {
    shownSince.id = current.id;
    shownSince.at = performance.now();
  }
  return html`<div class="desk">
    <nav class="queue block" aria-label="waiting calls"><ul>${queue.map((one) => keyed(one.id, html`<li><button aria-current=${one.id === current.id ? "true" : "false"} @click=${() => adjust({ id: String(one.id) }, true)}>
      <span class="cut">${visible(one.agent)} <span class="muted">${one.call}</span></span><span class="muted cut">${one.caller_present ? countdown(one.expires_at) : "gone"} ${visible(one.shown.split("\n")[0])}</span></button></li>`))}</ul></nav>
    ${keyed(current.id, item(current))}
  </div>`;
}

/** @param {Row[]} queue */
function currentOf(queue) {
  return queue.find((one) => String(one.id) === route.get().params.id) ?? queue[0];
}

/** @param {Row} one */
function item(one) {
  const why = whyDisabled();
  const never = why || (one.caller_present ? "" : GONE);
  const total = Math.max(1, one.expires_at - one.asked_at);
  countdown(one.expires_at);
  const left = Math.max(0, one.expires_at - now() / 1000);
  return html`<article class="block approval" aria-label=${`approval ${one.id}`}>
    <div><h2>${visible(one.agent)} asks: ${one.call}</h2><p class="muted">${visible(one.rule)}; asked ${exactTime(one.asked_at)}${one.caller_present ? "" : html`; <span class="warn">${GONE}</span>`}</p></div>
    ${marked(one.shown)}
    <div><div class="deadline"><i .style=${`width:${((100 * left) / total).toFixed(1)}%`}></i></div><p class="muted">expires in ${countdown(one.expires_at) || "a moment"}</p></div>
    <div class="acts">
      <button class="primary" disabled=${Boolean(never)} title=${never || `agentos approve ${one.id}`} @click=${() => decide(one, true)}>allow once (a)</button>
      <button disabled=${Boolean(never)} title=${never || `agentos approve ${one.id} --remember agent`} @click=${() => remembering.set(remembering.peek() === one.id ? 0 : one.id)}>remember… (r)</button>
      <button class="danger" disabled=${Boolean(why)} title=${why || `agentos deny ${one.id}`} @click=${() => startDenying(one.id)}>deny (d)</button>
    </div>
    ${remembering.get() === one.id && !never ? html`<div class="confirm"><p class="prose">The answer is remembered for exactly this object, and revoked by <code>agentos permissions forget</code>.</p><div class="acts">
      <button @click=${() => decide(one, true, { remember: "agent" })}>allow while this agent lives</button><button @click=${() => decide(one, true, { remember: "always" })}>allow always</button><button @click=${() => remembering.set(0)}>cancel</button></div></div>` : null}
    ${denying.get() === one.id ? html`<form class="confirm" @keydown=${(/** @type {KeyboardEvent} */ event) => event.key === "Escape" && denying.set(0)} @submit=${(/** @type {Event} */ event) => { event.preventDefault(); decide(one, false, { reason: String(new FormData(/** @type {HTMLFormElement} */ (event.target)).get("reason")) }); }}>
      <label>reason, which the agent is told <input name="reason" class="reason" maxlength="400"></label>
      <div class="acts"><button class="danger">deny</button><button type="button" @click=${() => denying.set(0)}>cancel</button></div></form>` : null}
  </article>`;
}

/** What a person sees: the kernel has escaped it; lines of a difference get the tint of their sign. @param {string} text */
function marked(text) {
  return html`<pre class="diff" tabindex="0">${text.split("\n").map((line) => html`<span class=${/^\+(?!\+\+)/.test(line) ? "add" : /^-(?!--)/.test(line) ? "del" : ""}>${`${visible(line)}\n`}</span>`)}</pre>`;
}

/** @param {Row} one @param {boolean} allow @param {Row} [more] */
async function decide(one, allow, more = {}) {
  denying.set(0);
  remembering.set(0);
  const { reason, ...rest } = more;
  const reply = await call("DECIDE", { id: one.id, allow, ...rest, ...(reason ? { reason } : {}) });
  if (reply?.success === false) toast(visible(reply.error), true);
  else toast(`${allow ? "allowed" : "denied"}: ${visible(one.agent)} ${one.call}`);
}

/** @param {number} id */
function startDenying(id) {
  denying.set(id);
  requestAnimationFrame(() => /** @type {HTMLElement?} */ (document.querySelector(".approval [name=reason]"))?.focus());
}

/** Keys of this page. @param {string} key @returns {boolean} whether it was one */
export function approvalKey(key) {
  const queue = approvals.peek();
  if (!queue.length || !connected.peek() || !["a", "r", "d", "j", "k"].includes(key)) return false;
  const current = currentOf(queue);
  const at = queue.indexOf(current);
  if (key === "j" || key === "k") {
    const next = queue[Math.max(0, Math.min(queue.length - 1, at + (key === "j" ? 1 : -1)))];
    adjust({ id: String(next.id) }, true);
  } else if (performance.now() - shownSince.at < SETTLE_MS || whyDisabled()) {
    return true;
  } else if (key === "d") {
    startDenying(current.id);
  } else if (current.caller_present) {
    if (key === "a") decide(current, true);
    else remembering.set(current.id);
  }
  return true;
}
