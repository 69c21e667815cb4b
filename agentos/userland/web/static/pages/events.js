// Events: what happens as it happens, or within a time that may reach back to all that the kernel keeps. Equal ones are one line.

import { connected, events, now, stream } from "../core/feed.js";
import { html, keyed } from "../core/html.js";
import { adjust, route } from "../core/route.js";
import { signal } from "../core/signals.js";
import { toast } from "../parts/actions.js";
import { ROUTINE, describe, eventLine, sameness, subject } from "../parts/text/event.js";
import { plural, timeOfDay, visible } from "../parts/text/format.js";

/** @typedef {Record<string, any>} Row */

const SHOWN = 300; // lines
const OPENED = 100; // events of an opened line
const RANGES = /** @type {[string, string][]} */ ([["", "since the page was opened"], ["300", "last 5 min"], ["3600", "last hour"], ["86400", "last 24 hours"], ["kept", "all that is kept"]]);

const held = signal(/** @type {Row[]|null} */ (null));
/** Those that the kernel kept when a time was first asked for that begins before what the page has. @type {ReturnType<typeof signal<Row[]|null>>} */
const past = signal(null);
const opened = signal(/** @type {Set<string>} */ (new Set()));
let loading = false;

/** What a search looks into, and what equal events have in common, of each event that was looked at. @type {WeakMap<Row, {text: string, key: string}>} */
const known = new WeakMap();

export function eventsPage() {
  const { filter = "", routine, each } = route.get().params;
  const { from, to } = span();
  const recent = held.get() ?? events.get();
  const all = from === null ? recent : withPast(recent, from);
  const wanted = filter.toLowerCase();
  const found = all.filter((event) => event.at >= (from ?? 0) && event.at <= (to ?? Infinity) && (!wanted || read(event).text.includes(wanted)));
  const chosen = routine ? found : found.filter((event) => !ROUTINE.includes(event.type));
  const lines = each ? chosen.map((event) => [event]).reverse() : collapse(chosen);
  const unseen = held.get() ? events.get().filter((event) => event.boot !== recent.at(-1)?.boot || event.seq > recent.at(-1)?.seq).length : 0;
  return html`
    <div class="toolbar">
      <label class="grow"><span class="hidden-text">search</span><input id="filter" placeholder="search in type, name and text" .value=${filter}
        @input=${(/** @type {any} */ event) => adjust({ filter: event.target.value || null }, true)}></label>
      <button aria-pressed=${String(!each)} title="one line for equal events" @click=${() => adjust({ each: each ? null : "1" }, true)}>collapse</button>
      <button aria-pressed=${String(Boolean(routine))} title=${ROUTINE.join(", ")} @click=${() => adjust({ routine: routine ? null : "1" }, true)}>routine${routine ? "" : ` (${found.length - chosen.length} hidden)`}</button>
      <button aria-pressed=${held.get() ? "false" : "true"} @click=${toggleFollow}>follow</button>
      ${unseen ? html`<button @click=${toggleFollow}>${unseen} new</button>` : null}
    </div>
    <div class="toolbar times">
      <select aria-label="time" @change=${(/** @type {any} */ event) => choose(event.target.value)}>${RANGES.map(([value, word]) => html`<option value=${value} .selected=${value === "" ? from === null : value === "kept" && from === 0 && to === null}>${word}</option>`)}${from === null || (from === 0 && to === null) ? null : html`<option value="chosen" .selected=${true}>from … to</option>`}</select>
      <label>from <input type="datetime-local" step="1" .value=${local(from)} @change=${(/** @type {any} */ event) => adjust({ from: seconds(event.target.value) }, true)}></label>
      <label>to <input type="datetime-local" step="1" .value=${local(to)} @change=${(/** @type {any} */ event) => adjust({ to: seconds(event.target.value), from: String(from ?? 0) }, true)}></label>
    </div>
    ${lines.length ? html`<div class="block">${lines.slice(0, SHOWN).map(line)}</div>` : html`<p class="block empty">${wanted || from !== null ? "No event contains that in this time." : "No event yet."}</p>`}
    <p class="muted after">${plural(chosen.length, "event")} in ${plural(lines.length, "line")}${lines.length > SHOWN ? `, of which the last ${SHOWN} are shown` : ""}. <code>agentos events --since 1h</code></p>`;
}

/** Newest first. @param {Row[]} group of equal events, the oldest first */
function line(group) {
  const last = group[group.length - 1];
  if (group.length === 1) return keyed(`${last.boot}.${last.seq}`, eventLine(last));
  const key = read(last).key;
  const open = opened.get().has(key);
  const many = html`<button class="quiet" aria-expanded=${String(open)} title=${`first ${timeOfDay(group[0].at)}, last ${timeOfDay(last.at)}`} @click=${() => toggle(key)}>×${group.length}</button>`;
  return keyed(key, html`<div>${eventLine(last, many)}${open ? html`<div class="opened">${group.slice(-OPENED - 1, -1).reverse().map((event) => keyed(`${event.boot}.${event.seq}`, eventLine(event)))}</div>` : null}</div>`);
}

/** @param {string} key */
function toggle(key) {
  const next = new Set(opened.peek());
  if (!next.delete(key)) next.add(key);
  opened.set(next);
}

/** Equal events together, those with the newest event first. @param {Row[]} list the oldest first @returns {Row[][]} */
function collapse(list) {
  /** @type {Map<string, Row[]>} */
  const groups = new Map();
  for (const event of list) {
    const { key } = read(event);
    const group = groups.get(key) ?? [];
    groups.delete(key); // so that its place is that of its newest event
    groups.set(key, group);
    group.push(event);
  }
  return [...groups.values()].reverse();
}

/** @param {Row} event */
function read(event) {
  const found = known.get(event) ?? { text: `${visible(event.type)} ${visible(subject(event))} ${describe(event)}`.toLowerCase(), key: sameness(event) };
  known.set(event, found);
  return found;
}

/** The time that was chosen, in seconds since the epoch. */
function span() {
  const { from, to } = route.get().params;
  const value = (/** @type {string|undefined} */ text) => (text && Number.isFinite(Number(text)) ? Number(text) : null);
  return { from: value(from), to: value(to) };
}

/** @param {string} range */
function choose(range) {
  if (range === "chosen") return;
  const from = range === "kept" ? 0 : Math.floor(now() / 1000 - Number(range));
  adjust({ from: range ? String(from) : null, to: null }, true);
}

/** For an input: local time. @param {number|null} at */
function local(at) {
  return at ? new Date(at * 1000).toLocaleString("sv-SE").replace(" ", "T") : "";
}

/** @param {string} text of an input @returns {string|null} */
function seconds(text) {
  const at = new Date(text).getTime() / 1000;
  return Number.isFinite(at) ? String(at) : null;
}

/** With the events before, once they are there: asked for when the page's own begin later. @param {Row[]} recent @param {number} from */
function withPast(recent, from) {
  const before = past.get();
  if (before === null) {
    if (recent.length && recent[0].at > from && connected.get() && !loading) load(recent[recent.length - 1].seq);
    return recent;
  }
  const last = before.at(-1)?.seq ?? -1;
  return [...before, ...recent.filter((event) => event.seq > last)];
}

/** Read what the kernel keeps, up to the event with this number. @param {number} last */
function load(last) {
  loading = true;
  /** @type {Row[]} */
  const found = [];
  const stop = stream("SUBSCRIBE", { event_types: ["*"], since: 0, stream: true }, (chunk) => {
    found.push(...chunk.events);
    if ((found.at(-1)?.seq ?? 0) < last) return;
    stop();
    loading = false;
    past.set(found);
  }, (reply) => {
    loading = false;
    if (reply?.success === false && reply.code !== "unavailable") toast(visible(reply.error), true);
  });
}

export function toggleFollow() {
  held.set(held.peek() ? null : [...events.peek()]);
}
