// Audit: the last entries, searched; whether the chain is sound. The same lines show one agent's last calls.

import { ask, forget } from "../core/ask.js";
import { kernel, ofThisRun } from "../core/feed.js";
import { html, keyed } from "../core/html.js";
import { adjust, route } from "../core/route.js";
import { duration, exactTime, number, readable, timeOfDay, visible } from "../parts/text/format.js";
import { shown } from "../parts/reply.js";

/** @typedef {Record<string, any>} Row */

const CATEGORIES = ["", "agents", "audit", "commands", "files", "kernel", "messages", "model", "network", "permissions", "state", "tools"];

export function auditPage() {
  const { params } = route.get();
  const audit = kernel.get()?.audit;
  return html`
    <div class="toolbar">
      <label class="grow"><span class="hidden-text">search</span><input id="filter" placeholder="search in caller, call, what, rule and outcome" .value=${params.filter ?? ""}
        @input=${(/** @type {any} */ event) => adjust({ filter: event.target.value || null }, true)}></label>
      <select aria-label="category" @change=${(/** @type {any} */ event) => adjust({ category: event.target.value || null }, true)}>${CATEGORIES.map((one) => html`<option value=${one} .selected=${one === (params.category ?? "")}>${one || "every category"}</option>`)}</select>
      <button @click=${() => forget("GET_AUDIT_LOG")}>refresh</button>
    </div>
    <p class="muted prose-line">${audit ? html`<span class=${audit.problem ? "bad" : ""}>${audit.problem ? visible(audit.problem) : "the chain is sound"}</span>, ${number(audit.entries)} entries, ${number(audit.lost)} lost; checked ${exactTime(audit.checked_at)}. <code>agentos audit verify</code> checks the files.` : ""}</p>
    ${calls({ limit: 1000, ...(params.category ? { category: params.category } : {}) }, params.filter ?? "")}`;
}

/** The newest entries first. @param {Row} args of GET_AUDIT_LOG @param {string} [filter] */
export function calls(args, filter = "") {
  return shown(ask("GET_AUDIT_LOG", args, 5), (reply) => {
    const wanted = filter.toLowerCase();
    const all = args.agent_id === undefined ? reply.entries : ofThisRun(reply.entries);
    const entries = all.filter((/** @type {Row} */ entry) => !wanted || [entry.name, entry.call, entry.about, entry.rule, entry.outcome].join(" ").toLowerCase().includes(wanted)).reverse();
    if (!entries.length) return html`<p class="empty">${wanted ? "No entry contains that." : "No entry yet."}</p>`;
    return html`<div class="block entries">${entries.slice(0, 300).map((/** @type {Row} */ entry) => keyed(entry.id, line(entry)))}</div>
      ${entries.length > 300 ? html`<p class="muted">the last 300 of ${entries.length}; <code>agentos audit</code> shows all</p>` : null}`;
  });
}

/** @param {Row} entry */
function line(entry) {
  const denied = entry.decision === "deny";
  const failed = !["ok", "", null].includes(entry.outcome);
  return html`<div class="entry" title=${`${exactTime(entry.at)}\n${entry.rule ?? ""}`}>
    <time class="muted">${timeOfDay(entry.at)}</time>
    <span class="cut">${visible(entry.name)}</span>
    <span class="cut">${entry.call}${entry.repeated > 1 ? ` ×${entry.repeated}` : ""}</span>
    <span class="cut muted">${readable(entry.about)}</span>
    <span class=${`cut ${denied ? "bad" : failed ? "warn" : "muted"}`}>${denied ? "denied by rule" : entry.phase === "intent" ? "begins" : visible(entry.outcome)}</span>
    <span class="number muted">${entry.duration === null ? "" : duration(entry.duration * 1000)}</span>
  </div>`;
}
