// Trace: the calls of an agent's life as a waterfall; a question to the model opens prompt, answer, tokens and cost.

import { ask } from "../core/ask.js";
import { agents, findAgent, ofThisRun } from "../core/feed.js";
import { html, keyed } from "../core/html.js";
import { adjust, route } from "../core/route.js";
import { signal } from "../core/signals.js";
import { duration, exactTime, number, readable, visible, visibleLines } from "../parts/text/format.js";
import { facts, shown } from "../parts/reply.js";

/** @typedef {Record<string, any>} Row */

const SHOWN = 60; // calls: more would make the bars too short
/** @type {string|undefined} */
let shownLast;
/** The entry that is opened, by its id. */
export const opened = signal(/** @type {number|null} */ (null));
const BESIDE = 900; // pixels of the page, from which what is opened stands beside the bars
/** The part of time that is shown, in seconds since the epoch; all where it is of another agent. */
export const zoomed = signal({ name: "", from: 0, to: 0 });

export function tracePage() {
  const { params } = route.get();
  const names = [...agents.get().values()].map((row) => row.name).sort();
  const busy = [...agents.get().values()].find((row) => row.llm?.waiting || row.llm?.in_flight);
  const name = params.of ?? params.agent ?? shownLast ?? busy?.name ?? names[0];
  shownLast = name; // not another one whenever another one asks
  if (!name) return html`<p class="block empty">No agents yet. <code>agentos spawn worker.py</code></p>`;
  return html`<div class="toolbar"><label>agent <select @change=${(/** @type {any} */ event) => adjust({ of: event.target.value })}>${names.map((one) => html`<option value=${one} .selected=${one === name}>${visible(one)}</option>`)}</select></label>
      <span class="muted">the last ${SHOWN} recorded calls of its last life; <code>agentos trace ${visible(name)}</code> has all of a life</span></div>
    ${traceOf(name)}`;
}

/** @param {string} name */
export function traceOf(name) {
  const row = findAgent(name);
  if (!row) return html`<p class="muted">There is no agent of this name now.</p>`;
  return shown(ask("GET_AUDIT_LOG", { agent_id: row.id, limit: SHOWN }, 5), (reply) => lastLife(ofThisRun(reply.entries), name));
}

/** The last life that these entries tell of. @param {Row[]} entries @param {string} name */
function lastLife(entries, name) {
  const ready = entries.findLast((entry) => entry.call === "AGENT_READY");
  const born = ready ? ready.at - (ready.duration ?? 0) : 0; // calls that it made before it was ready belong to it, too
  const life = entries.filter((entry) => entry.at >= born && entry.phase !== "intent");
  if (!life.length) return html`<p class="empty">It has made no recorded call yet.</p>`;
  return waterfall(life, name, (entry) => (entry.call === "THINK" ? question(name, entry) : details(entry)));
}

/** Calls as bars; one that is opened shows its details. `now` is a column of its own: what a replay found of each.
 * @param {Row[]} life @param {string} name of whose time it is @param {(entry: Row) => unknown} detailOf @param {((entry: Row) => unknown)|null} [now] */
export function waterfall(life, name, detailOf, now = null) {
  const begin = Math.min(...life.map((entry) => entry.at - (entry.duration ?? 0)));
  const all = { name, from: begin, to: Math.max(begin + 0.001, ...life.map((entry) => entry.at)) };
  const view = zoomed.get().name === name ? zoomed.get() : all;
  const span = view.to - view.from;
  const share = (/** @type {number} */ at) => Math.max(0, Math.min(100, (100 * (at - view.from)) / span));
  const step = stepOf(span);
  const first = Math.ceil((view.from - begin) / step - 1e-9) * step; // marks stay where they are in the agent's time
  const shownCalls = life.filter((entry) => entry.at >= view.from && entry.at - (entry.duration ?? 0) <= view.to);
  const beside = route.get().page !== "agents" && (document.getElementById("main")?.clientWidth ?? 0) >= BESIDE;
  const found = life.find((entry) => entry.id === opened.get());
  const detail = found && html`<div class="detail">${detailOf(found)}</div>`;
  return html`${summary(shownCalls, span)}${zoomButtons(view, all)}<div class=${beside && found ? "two-columns" : ""}><div class=${now ? "waterfall with-now" : "waterfall"} aria-label=${`calls of ${name}`} role="group" .style=${`--step:${((100 * step) / span).toFixed(3)}%;--first:${(share(begin + first) / Math.max(0.01, 1 - step / span)).toFixed(3)}%`} @pointerdown=${(/** @type {PointerEvent} */ event) => select(event, view)}>
    <div class="row axis" title="drag along the bars to zoom"><span class="number">at</span><span>call</span><span class="track">${marks(begin + first, view.to, step).map((at) => html`<span class=${share(at) > LATE ? "late" : ""} .style=${share(at) > LATE ? `right:${(100 - share(at)).toFixed(2)}%` : `left:${share(at).toFixed(2)}%`}>${at - begin > step / 2 ? duration((at - begin) * 1000) : "0"}</span>`)}</span><span class="number">took</span>${now ? html`<span>now</span>` : null}</div>
    ${shownCalls.map((entry) => {
    const took = entry.duration ?? 0;
    const open = found === entry;
    let at = entry.at - took;
    return keyed(entry.id, html`<div>
      <div class=${open ? "row open" : "row"} title=${exactTime(entry.at)} @click=${() => opened.set(open ? null : entry.id)}>
        <span class="muted number">+${duration((entry.at - took - begin) * 1000)}</span>
        <span class="cut"><button class="quiet" aria-expanded=${String(open)}>${entry.call}</button> <span class="muted">${readable(entry.about)}</span></span>
        <span class="track">${partsOf(entry).map(({ kind, seconds }) => {
          const from = Math.min(99.6, share(at));
          at += seconds;
          return html`<i class=${kind} .style=${`left:${from.toFixed(2)}%;width:${Math.max(0.3, share(at) - from).toFixed(2)}%`}></i>`;
        })}</span>
        <span class="number muted">${took ? duration(took * 1000) : ""}</span>${now ? html`<span class="now">${now(entry)}</span>` : null}
      </div>
      ${open && !beside ? detail : null}
    </div>`);
  })}</div>${beside && found ? html`<aside class="block" aria-label=${`call ${found.id}`}><div class="toolbar"><h2 class="grow">${found.call}</h2><button class="quiet" @click=${() => opened.set(null)}>close</button></div>${detail}</aside>` : null}</div>`;
}

/** @typedef {{name: string, from: number, to: number}} View */

/** Show a part of an agent's time, within all of it. @param {View} all @param {number} from @param {number} to */
export function zoomTo(all, from, to) {
  const span = Math.min(Math.max(to - from, 0.001), all.to - all.from);
  const begin = Math.max(all.from, Math.min(all.to - span, from));
  zoomed.set(span >= all.to - all.from ? { name: "", from: 0, to: 0 } : { name: all.name, from: begin, to: begin + span });
}

/** @param {View} view @param {View} all */
function zoomButtons(view, all) {
  const span = view.to - view.from;
  const whole = view.from <= all.from && view.to >= all.to;
  const button = (/** @type {string} */ word, /** @type {string} */ sign, /** @type {boolean} */ none, /** @type {number} */ from, /** @type {number} */ to) => html`<button aria-label=${word} title=${word} disabled=${none} @click=${() => zoomTo(all, from, to)}>${sign}</button>`;
  return html`<div class="toolbar" role="group" aria-label="zoom">${button("zoom in", "+", span < 0.002, view.from + span / 4, view.to - span / 4)}${button("zoom out", "−", whole, view.from - span / 2, view.to + span / 2)}
    ${button("earlier", "←", whole, view.from - span / 2, view.to - span / 2)}${button("later", "→", whole, view.from + span / 2, view.to + span / 2)}${button("all of it", "all", whole, all.from, all.to)}
    <span class="muted">${whole ? "drag along the bars to zoom" : `${duration(span * 1000)} of ${duration((all.to - all.from) * 1000)}`}</span></div>`;
}

/** Zoom to what a pointer is drawn along. @param {PointerEvent} event @param {View} view */
function select(event, view) {
  const track = /** @type {Element} */ (event.target).closest(".track");
  if (!track || event.pointerType === "touch") return;
  const { left, width } = track.getBoundingClientRect();
  const at = (/** @type {number} */ x) => view.from + Math.max(0, Math.min(1, (x - left) / width)) * (view.to - view.from);
  addEventListener("pointerup", (end) => {
    if (Math.abs(end.clientX - event.clientX) < 6) return; // a click
    const swallow = (/** @type {Event} */ click) => click.stopPropagation(); // that of this pointer
    addEventListener("click", swallow, { capture: true, once: true });
    setTimeout(() => removeEventListener("click", swallow, { capture: true }));
    const [from, to] = [at(event.clientX), at(end.clientX)].sort((one, other) => one - other);
    zoomTo({ ...view, from: -Infinity, to: Infinity }, from, to);
  }, { once: true });
}

const LATE = 94; // per cent of the axis: no room for what a mark says behind it
const MARKS = 8; // of the time axis, at most; narrow ones show every fourth

/** Seconds between two marks of the time axis: 1, 2 or 5 of a power of ten below a minute, then minutes and hours. @param {number} span */
function stepOf(span) {
  const power = 10 ** Math.floor(Math.log10(span / MARKS));
  const steps = [...[1, 2, 5, 10].map((one) => one * power).filter((one) => one < 60), 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400];
  return steps.find((one) => span / one <= MARKS) ?? span / MARKS;
}

/** @param {number} first @param {number} to @param {number} step */
function marks(first, to, step) {
  return Array.from({ length: Math.max(0, Math.floor((to - first) / step + 1e-9) + 1) }, (_, index) => first + index * step);
}

/** What an entry's time went to: the line before the model, the model, other calls; a moment of the agent's own life takes none.
 * @param {Row} entry @returns {{kind: string, seconds: number}[]} */
function partsOf(entry) {
  const took = entry.duration ?? 0;
  if (isMoment(entry)) return [{ kind: entry.outcome === "failed" ? "failed" : "life", seconds: 0 }];
  if (entry.decision === "deny") return [{ kind: "denied", seconds: took }];
  if (entry.call !== "THINK") return [{ kind: entry.outcome === "ok" ? "tools" : "failed", seconds: took }];
  const waited = Math.min(took, Number(/ queued ([0-9.]+) s/.exec(entry.about)?.[1] ?? 0));
  const answered = { kind: entry.outcome === "ok" ? "model" : "failed", seconds: took - waited };
  return waited > 0 ? [{ kind: "waiting", seconds: waited }, answered] : [answered];
}

const KINDS = /** @type {[string, string][]} */ ([["waiting", "waiting in the line"], ["model", "model"], ["tools", "tools and other calls"], ["denied", "denied by rule"], ["failed", "failed"]]);

/** How long all of a kind took together: the key to the bars' colours, too. @param {Row[]} life @param {number} span */
function summary(life, span) {
  /** @type {Map<string, number>} */
  const sums = new Map();
  for (const { kind, seconds } of life.flatMap(partsOf)) sums.set(kind, (sums.get(kind) ?? 0) + seconds);
  return html`<p class="count-row sums"><span><span class="figure">${duration(span * 1000)}</span><span class="muted">shown</span></span>${KINDS.filter(([kind]) => sums.has(kind)).map(([kind, word]) =>
    html`<span><i class=${`swatch ${kind}`}></i><span class="figure">${duration((sums.get(kind) ?? 0) * 1000)}</span><span class="muted">${word}</span></span>`)}</p>`;
}

/** Of the agent's life, or that a person was asked: no call that took time. @param {Row} entry */
function isMoment(entry) {
  return entry.call === "APPROVAL_REQUESTED" || (entry.category === "agents" && entry.call.startsWith("AGENT_"));
}

/** @param {Row} entry */
export function details(entry) {
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
