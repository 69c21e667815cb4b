// Overview: what needs a person first, then the counts, the last events.

import { agents, answerable, events, kernel, lastEvent } from "../core/feed.js";
import { html, keyed } from "../core/html.js";
import { adjust, link } from "../core/route.js";
import { actionButton, confirmation, possible, whyDisabled } from "../parts/actions.js";
import { openSpawn } from "../parts/forms.js";
import { charts } from "../parts/charts/charts.js";
import { lastEnd } from "../parts/text/ends.js";
import { bytes, countdown, cutMiddle, elapsed, plural, remaining, visible } from "../parts/text/format.js";
import { ROUTINE, eventLine } from "../parts/text/event.js";
import { firstQuoted } from "./approvals.js";
import { ORDER, glyph, stateColour, stateWord } from "../parts/state.js";

const NEAR = 0.8; // of a limit
const MOST_SHOWN = 12; // what needs attention: the rest of the page is to be seen, too

/** @typedef {{key: string, glyph: string, colour: string, name: string, state: unknown, text: unknown, row?: Record<string, any>, approval?: Record<string, any>}} Item */

/** Approvals by deadline, failed, unhealthy, backing off, near the limit of memory, the rest. @returns {Item[]} */
export function attention() {
  /** @type {Item[]} */
  const items = answerable().toSorted((one, other) => one.expires_at - other.expires_at).map((one) => ({
    key: `approval ${one.id}`, glyph: "asks", colour: "info", name: one.path || one.agent, approval: one,
    state: "asks", text: html`<span>${one.call}, ${plural(one.lines.length, "line")}: <q class="quote">${cutMiddle(visible(firstQuoted(one)), 160)}</q></span>`,
  }));
  const rows = [...agents.get().values()];
  const failed = rows.filter((row) => row.state === "failed");
  const unhealthy = rows.filter((row) => row.health && row.state === "running" && row.health !== "healthy");
  const backing = rows.filter((row) => row.state === "backing_off");
  for (const [list, colour] of /** @type {[Record<string, any>[], string][]} */ ([[failed, "bad"], [unhealthy, "warn"], [backing, "warn"]])) {
    for (const row of list) {
      items.push({ key: `agent ${row.id}`, glyph: row.state, colour, name: row.name, row, state: stateWord(row.state), text: reason(row) });
    }
  }
  for (const { row, limit } of nearLimit(rows)) {
    items.push({ key: `memory ${row.id}`, glyph: row.state, colour: "warn", name: row.name, row, state: "near its limit", text: `memory ${bytes(row.memory_bytes)} of ${bytes(limit)}` });
  }
  const named = new Set(items.map((item) => item.name));
  for (const one of kernel.get()?.attention ?? []) {
    if (one.kind === "approval" || (one.name && named.has(one.name))) continue;
    const row = rows.find((agent) => agent.name === one.name);
    items.push({ key: `${one.kind} ${one.name}`, glyph: "asks", colour: "warn", name: one.name ?? one.kind, row, state: one.kind, text: visible(one.text) });
  }
  return items;
}

/** Those that were warned about their memory, and hold as much still. @param {Record<string, any>[]} rows */
function nearLimit(rows) {
  /** @type {Map<string, number>} */
  const limits = new Map();
  for (const { type, data } of events.get()) if (type === "RESOURCE_WARNING" && data.resource === "memory") limits.set(data.name, data.limit);
  return rows.map((row) => ({ row, limit: limits.get(row.name) ?? Infinity })).filter(({ row, limit }) => row.running && row.memory_bytes >= NEAR * limit);
}

/** @param {Record<string, any>} row */
export function reason(row) {
  if (row.state === "running" && row.health) return visible(row.health);
  const stopped = row.stopped_by ? `stopped by ${visible(row.stopped_by)}` : "";
  return [stopped, visible(row.end ?? "")].filter(Boolean).join(", ") || "no reason known";
}

/** When its present state began, in milliseconds since the epoch; null if no event that is known says so. @param {Record<string, any>} row */
export function begun(row) {
  if (row.state === "running") return row.since_ms;
  const event = lastEvent("AGENT_STATE", row.name);
  return event && event.data.state === row.state ? event.at * 1000 : null;
}

/** When a program in backoff or one with a schedule starts, as far as it is known; else for how long the state has lasted. @param {Record<string, any>} row */
export function since(row) {
  const planned = row.state === "backing_off" ? lastEvent("AGENT_RESTARTING", row.name) : null;
  const left = planned ? countdown(planned.at + planned.data.delay) : "";
  if (left) return `starts in ${left}`;
  if (row.state === "waiting" && row.next_at) return `starts in ${remaining(row.next_at)}`;
  const began = begun(row) ?? (row.running ? null : lastEnd(row)?.at) ?? null;
  return began === null ? "" : elapsed(began);
}

/** The last line that it wrote to stderr in its last life. @param {Record<string, any>} row */
export function quote(row) {
  const text = row.running ? "" : lastEnd(row)?.text;
  return text ? html`<q class="quote" title=${`agentos logs ${row.name} --stream stderr`}>${visible(text)}</q>` : null;
}

export function overview() {
  const items = attention();
  const count = (/** @type {string} */ state) => [...agents.get().values()].filter((row) => row.state === state).length;
  const shown = items.slice(0, MOST_SHOWN);
  const shownEvents = events.get().filter((event) => event.type !== "CUSTOM" && !ROUTINE.includes(event.type)).slice(-12).reverse();
  return html`
    <section aria-label="needs attention">
      <h2 class="label">Needs attention (${items.length})</h2>
      ${agents.get().size ? null : firstStep()}
      ${items.length ? html`<ul class="block attention">${shown.map((item) => keyed(item.key, line(item)))}</ul>` : agents.get().size ? html`<p class="block empty">Nothing: every agent that should run does.</p>` : null}
      ${items.length > shown.length ? html`<p class="muted">and ${items.length - shown.length} more: <a class="text" href=${link("agents", { filter: "state:failed,backing_off" })}>all of them</a></p>` : null}
    </section>
    <section aria-label="agents by state">
      <h2 class="label">Agents</h2>
      <p class="count-row">${ORDER.filter((state) => count(state) || state === "running").map((state) => html`<a href=${link("agents", { filter: `state:${state}` })} class="state"><span class=${`state ${stateColour(state)}`}>${glyph(state)}</span><span class="figure">${count(state)}</span><span class="muted">${stateWord(state)}</span></a>`)}</p>
    </section>
    ${charts(null)}
    <section aria-label="last events">
      <h2 class="label">Last events</h2>
      <div class="block rows">${shownEvents.length ? shownEvents.map((event) => keyed(`${event.boot}.${event.seq}`, eventLine(event))) : html`<p class="empty">No event yet.</p>`}</div>
    </section>`;
}

/** Without an agent. */
function firstStep() {
  const why = whyDisabled();
  return html`<div class="block empty"><p class="prose">No agent runs yet. Start a first one here, or write agents that stay into the configuration: <code>agentos init</code> makes one, and <code>agentos reload</code> starts what is new in it.</p>
    <p class="after"><button class="primary" disabled=${Boolean(why)} title=${why || "agentos spawn NAME COMMAND…"} @click=${openSpawn}>spawn a first agent…</button></p></div>`;
}

/** @param {Item} item */
function line(item) {
  const place = `attention ${item.key}`;
  const acts = item.approval
    ? html`<a class="button" href=${link("approvals", { id: String(item.approval.id) })}>decide</a>`
    : item.row
      ? html`${possible(item.row).slice(0, 1).map((action) => actionButton(action, [item.name], place))}<button @click=${() => adjust({ agent: item.name })}>more</button>`
      : null;
  const timer = item.approval ? countdown(item.approval.expires_at) : item.row ? since(item.row) : "";
  return html`<li>
    <span class=${item.colour}>${glyph(item.glyph)}</span>
    <span class="cut"><a href=${item.row ? link("overview", { agent: item.name }) : link("system")} title=${visible(item.name)}>${visible(cutMiddle(item.name, 26))}</a><br><span class=${item.colour}>${item.state}</span> <span class="muted">${timer}</span></span>
    <span class="text">${item.text}${item.row ? quote(item.row) : null}</span>
    <span class="acts">${acts}</span>
    ${confirmation(place)}
  </li>`;
}
