// Trace: the calls of an agent's life as a waterfall; a question to the model opens prompt, answer, tokens and cost.

import { ask } from "../core/ask.js";
import { agents } from "../core/feed.js";
import { html, keyed } from "../core/html.js";
import { adjust, route } from "../core/route.js";
import { signal } from "../core/signals.js";
import { duration, exactTime, number, visible, visibleLines } from "../parts/format.js";
import { facts, shown } from "../parts/reply.js";

/** @typedef {Record<string, any>} Row */

const SHOWN = 150; // calls
const opened = signal(/** @type {number|null} */ (null));

export function tracePage() {
  const { params } = route.get();
  const names = [...agents.get().values()].map((row) => row.name).sort();
  const name = params.of ?? params.agent ?? names[0];
  if (!name) return html`<p class="block empty">No agents yet. <code>agentos spawn worker.py</code></p>`;
  return html`<div class="toolbar"><label>agent <select @change=${(/** @type {any} */ event) => adjust({ of: event.target.value })}>${names.map((one) => html`<option value=${one} .selected=${one === name}>${visible(one)}</option>`)}</select></label>
      <span class="muted">the last ${SHOWN} recorded calls; <code>agentos trace ${visible(name)}</code> has all of a life</span></div>
    ${traceOf(name)}`;
}

/** @param {string} name */
export function traceOf(name) {
  const row = [...agents.get().values()].find((one) => one.name === name);
  if (!row) return html`<p class="muted">There is no agent of this name now.</p>`;
  return shown(ask("GET_AUDIT_LOG", { agent_id: row.id, limit: SHOWN }, 5), (reply) => waterfall(reply.entries, name));
}

/** @param {Row[]} entries @param {string} name */
function waterfall(entries, name) {
  const lives = entries.map((entry) => entry.call).lastIndexOf("AGENT_SPAWNED");
  const life = entries.slice(Math.max(0, lives)).filter((entry) => entry.phase !== "intent");
  if (!life.length) return html`<p class="empty">It has made no recorded call yet.</p>`;
  const begin = Math.min(...life.map((entry) => entry.at - (entry.duration ?? 0)));
  const end = Math.max(...life.map((entry) => entry.at));
  const span = Math.max(0.001, end - begin);
  return html`<div class="waterfall" aria-label=${`calls of ${name}`} role="group">${life.map((entry) => {
    const took = isLife(entry) ? 0 : (entry.duration ?? 0);
    const left = ((entry.at - took - begin) / span) * 100;
    const width = Math.max(0.4, (took / span) * 100);
    const colour = entry.decision === "deny" ? "var(--bad)" : entry.outcome === "ok" ? (entry.call === "THINK" ? "var(--accent)" : "var(--info)") : "var(--warn)";
    const open = opened.get() === entry.id;
    return keyed(entry.id, html`<div>
      <div class="row" title=${exactTime(entry.at)} @click=${() => opened.set(open ? null : entry.id)}>
        <span class="muted number">+${duration((entry.at - took - begin) * 1000)}</span>
        <span class="cut"><button class="quiet" aria-expanded=${String(open)}>${entry.call}</button> <span class="muted">${visible(entry.about)}</span></span>
        <span class="track"><i .style=${`left:${Math.min(99.6, left).toFixed(2)}%;width:${Math.min(100 - left, width).toFixed(2)}%;background:${colour}`}></i></span>
        <span class="number muted">${took ? duration(took * 1000) : ""}</span>
      </div>
      ${open ? html`<div class="detail">${entry.call === "THINK" ? question(name, entry) : details(entry)}</div>` : null}
    </div>`);
  })}</div>`;
}

/** @param {Row} entry */
function isLife(entry) {
  return entry.category === "agents" && entry.call.startsWith("AGENT_");
}

/** @param {Row} entry */
function details(entry) {
  return facts([["what", visible(entry.about)], ["decision", `${entry.decision}${entry.rule ? `: ${visible(entry.rule)}` : ""}`], ["outcome", visible(entry.outcome)], ["at", exactTime(entry.at)], ["entry", entry.id]]);
}

/** The question that was asked then, if its contents are kept. @param {string} name @param {Row} entry */
function question(name, entry) {
  return html`${details(entry)}${shown(ask("GET_CONTENTS", { name, limit: 50 }, 10), (reply) => {
    const begun = entry.at - (entry.duration ?? 0);
    const found = reply.questions.reduce((/** @type {Row|null} */ best, /** @type {Row} */ one) => (Math.abs(one.at - begun) < Math.abs((best?.at ?? -1e9) - begun) ? one : best), null);
    if (!found || Math.abs(found.at - begun) > 2) return html`<p class="muted">Its text isn't kept: the last ${reply.count} questions are ([llm] keep_contents).</p>`;
    return html`${facts([
        ["waited in the line", duration(found.queued_ms)], ["model", `${duration(found.latency_ms)}, ${visible(found.model)}`],
        ["tokens", `${number(found.usage?.input)} in, ${number(found.usage?.output)} out`], ["cost", found.cost === null ? null : number(found.cost, 4)],
      ])}
      ${found.messages.map((/** @type {Row} */ message) => html`<h3>${message.role}</h3><pre>${visibleLines(message.text)}</pre>`)}
      <h3>answer</h3><pre>${visibleLines(found.answer || found.error || "")}</pre>`;
  })}`;
}
