// One row of the tree: guides to its parent, a supervisor with its strategy, an agent with what it uses, a fold of equal siblings.

import { events } from "../core/feed.js";
import { html } from "../core/html.js";
import { signal } from "../core/signals.js";
import { cores } from "./charts/cpu.js";
import { bytes, cutMiddle, number, plural, timeOfDay, visible } from "./text/format.js";
import { fresh } from "./fresh.js";
import { memoryLimit } from "./charts/limits.js";
import { bar, shortName, stateColour, stateTag, stateWord, urgency } from "./state.js";

/** @typedef {Record<string, any>} Row */
/** `bracket`: where the line stands among siblings that restart together: "first", "middle", "last", "only", or "" where they don't.
 * @typedef {{key: string, depth: number, node: Row, agent?: Row, folded?: Row[], last: boolean, rails: boolean[], bracket: string, shut?: boolean}} Line */

const OUTLINE_MS = 1200;
const noticed = signal(/** @type {Set<string>} */ (new Set()));

/** Lines of supervisors that have given up, by key, with the event; `path`: the line above each, until the outline is over. */
export function escalations() {
  /** @type {Map<string, Row>} */
  const given = new Map();
  const path = new Set();
  for (const event of events.get()) {
    if (event.type !== "AGENT_ESCALATED" || noticed.get().has(`${event.boot}.${event.seq}`)) continue;
    const key = `/${event.data.supervisor}`;
    given.set(key, event);
    if (Date.now() - event.at * 1000 < OUTLINE_MS) path.add(key).add(key.slice(0, key.lastIndexOf("/")));
  }
  return { given, path };
}

/** The chip of this line was seen, with all that its supervisor had given up before. @param {Row|undefined} event */
export function notice(event) {
  if (!event) return;
  const seen = events.peek().filter((one) => one.type === event.type && one.data.supervisor === event.data.supervisor);
  noticed.set(new Set([...noticed.peek(), ...seen.map((one) => `${one.boot}.${one.seq}`)]));
}

/** @param {Row|undefined} event */
export function chip(event) {
  return event ? html`<span class="chip bad" title=${visible(event.data.reason)}>escalated ${timeOfDay(event.at).slice(0, 5)}</span>` : null;
}

/** Elbows to the parent, rails of the levels above, a bracket along siblings that restart together. @param {Line} line @param {number} height */
export function guides(line, height) {
  if (!line.depth) return html`<span class="guide"></span>`;
  const half = height / 2;
  const x = (/** @type {number} */ level) => 14 + (level - 1) * 20;
  const rails = line.rails.map((shown, level) => (shown ? `M${x(level + 1) - 0.5} 0V${height}` : "")).join("");
  const elbow = `M${x(line.depth) - 0.5} 0V${line.last ? half : height}M${x(line.depth) - 0.5} ${half}h12`;
  const [from, to] = [/first|only/.test(line.bracket) ? 6 : 0, /last|only/.test(line.bracket) ? height - 6 : height];
  const bracket = line.bracket ? `${from ? "M7 6H3" : "M3 0"}V${to}${to < height ? "H7" : ""}` : "";
  return html`<svg class="guide" width=${x(line.depth) + 14} height=${height} aria-hidden="true"><path d=${rails + elbow} fill="none" stroke="var(--line)" /><path d=${bracket} fill="none" stroke="var(--info)" stroke-width="1.5" /></svg>`;
}

/** @param {Line} line @param {number} height @param {unknown} mark */
export function supervisorRow(line, height, mark) {
  const { node, bracket, shut } = line;
  const used = node.restarts_in_period ?? 0;
  const squares = Array.from({ length: Math.min(10, node.intensity) }, (_, index) => html`<i class=${index < used ? "full" : ""}></i>`);
  return html`<span class="first">${guides(line, height)}<span aria-hidden="true">${shut ? "▸" : "▾"}</span><b class="cut" title=${visible(node.name)}>${visible(cutMiddle(node.name, 48))}</b></span>
    <span class="rest cut">${node.strategy}<span class="muted">${node.restarts_in_period === undefined ? "at most " : `${node.restarts_in_period} of `}${plural(node.intensity, "restart")} in ${node.period}s</span>${used ? html`<span class="squares" aria-hidden="true">${squares}</span>` : null}${bracket ? html`<span class="muted">restarts with its siblings</span>` : null}${mark}</span>`;
}

/** @param {Line} line @param {number} height */
export function foldRow(line, height) {
  const { node, folded: rows = [] } = line;
  const counts = new Map();
  for (const one of rows.toSorted((one, other) => urgency(one) - urgency(other))) counts.set(one.state, (counts.get(one.state) ?? 0) + 1);
  return html`<span class="first">${guides(line, height)}<span aria-hidden="true">▸</span><span class="cut">${visible(node.name)} (${rows.length})</span></span>
    <span class="rest cut">${[...counts].map(([state, count]) => html`<span class=${stateColour(state)}>${count} ${stateWord(state)}</span>`)}</span>`;
}

/** @param {Line} line @param {number} height @param {unknown} time @param {unknown} mark */
export function agentRow(line, height, time, mark) {
  const { node, agent } = line;
  const row = agent ?? node;
  const used = agent?.running ? cores(agent) : null;
  const limit = agent?.running ? memoryLimit(agent) : null;
  return html`<span class="first">${guides(line, height)}<span class="cut" title=${visible(node.name)}>${shortName(node.name)}</span>${mark}</span>
    <span class=${fresh(`tree ${node.id} state`, row.state)}>${stateTag(row.state)}</span>
    <span class="muted number">${time}</span>
    <span class="use" title="cpu, of one core">${agent?.running ? bar(used, 1) : null}<span class="muted">${number(used, 2)}</span></span>
    <span class="use" title=${limit ? `memory, of ${bytes(limit)}` : "memory, no limit known"}>${agent?.running ? bar(agent.memory_bytes, limit) : null}<span class="muted">${bytes(agent?.running ? agent.memory_bytes : null)}</span></span>
    <span class=${`muted cut ${fresh(`tree ${node.id} restarts`, row.restarts)}`}>${row.restarts ? plural(row.restarts, "restart") : ""}${node.restarts_in_period ? `, ${node.restarts_in_period} of ${node.intensity} in ${node.period}s` : ""}</span>
    <span class="cut muted">${agent && row.state !== "running" ? visible(agent.end ?? "") : ""}</span>`;
}
