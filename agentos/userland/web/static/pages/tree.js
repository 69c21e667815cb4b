// Tree: supervisors and agents in the order of their declaration. Only rows in view are in the document.

import { ask, forget } from "../core/ask.js";
import { agents } from "../core/feed.js";
import { html, keyed } from "../core/html.js";
import { adjust, route } from "../core/route.js";
import { signal } from "../core/signals.js";
import { cores } from "../parts/cpu.js";
import { bytes, cutMiddle, number, plural, visible } from "../parts/format.js";
import { shown } from "../parts/reply.js";
import { bar, stateColour, stateTag, stateWord } from "../parts/state.js";
import { since } from "./overview.js";

/** @typedef {Record<string, any>} Row */
/** @typedef {{key: string, depth: number, node: Row, agent?: Row, folded?: Row[], last: boolean, rails: boolean[], bracket: string}} Line */

const FOLD = 30; // equal siblings
const ROW = () => (matchMedia("(pointer: coarse)").matches ? 44 : 28);
const closed = signal(/** @type {Set<string>} */ (new Set()));
const opened = signal(/** @type {Set<string>} */ (new Set()));
const view = signal({ top: 0, height: 800 });
let known = "";

export function treePage() {
  // Which agents there are, and where: the tree is asked for again only when that changes.
  const shape = [...agents.get().values()].map((row) => `${row.id} ${row.supervisor} ${row.parent}`).join();
  if (shape !== known) {
    known = shape;
    forget("TREE");
  }
  return shown(ask("TREE", {}, 30), (reply) => draw(reply.tree));
}

/** @param {Row} root */
function draw(root) {
  /** @type {Line[]} */
  const lines = [];
  const rows = new Map([...agents.get().values()].map((row) => [row.id, row]));
  walk(root, "", 0, [], true, "", lines, rows);
  const height = ROW();
  const { top, height: viewHeight } = view.get();
  const first = Math.max(0, Math.floor(top / height) - 10);
  const count = Math.ceil(viewHeight / height) + 20;
  const selected = route.get().params.agent;
  return html`<div class="toolbar"><span class="muted">${plural(rows.size, "agent")} in ${plural(lines.filter((line) => line.node.type === "supervisor").length, "supervisor")}</span></div>
    <div class="tree block" role="tree" tabindex="0" aria-label="supervision tree" @scroll=${scrolled} @keydown=${(/** @type {KeyboardEvent} */ event) => press(event, lines)}>
      <div .style=${`position:relative;height:${lines.length * height}px`}>
        ${lines.slice(first, first + count).map((line, index) => keyed(line.key, row(line, first + index, height, selected)))}
        ${strip(lines, viewHeight)}
      </div>
    </div>`;
}

/** @param {Row} node @param {string} path @param {number} depth @param {boolean[]} rails @param {boolean} last @param {string} bracket @param {Line[]} lines @param {Map<number, Row>} rows */
function walk(node, path, depth, rails, last, bracket, lines, rows) {
  const key = `${path}/${node.name}`;
  const agent = node.type === "agent" ? rows.get(node.id) : undefined;
  lines.push({ key, depth, node, agent, last, rails, bracket });
  if (closed.get().has(key)) return;
  const together = node.strategy === "one_for_all" || node.strategy === "rest_for_one" ? node.strategy : "";
  const children = node.children ?? [];
  const inner = depth ? [...rails, !last] : [];
  const groups = opened.get().has(key) ? children.map((/** @type {Row} */ child) => [child]) : fold(children);
  groups.forEach((/** @type {Row[]} */ group, /** @type {number} */ index) => {
    const isLast = index === groups.length - 1;
    if (group.length > 1) {
      const folded = group.map((child) => rows.get(child.id) ?? child);
      lines.push({ key: `${key}/*${group[0].name}`, depth: depth + 1, node: { type: "fold", name: stem(group[0].name), parent: key }, folded, last: isLast, rails: inner, bracket: together });
    } else {
      walk(group[0], key, depth + 1, inner, isLast, together, lines, rows);
    }
  });
}

/** Runs of more than 30 agents whose names differ by their number only. @param {Row[]} children @returns {Row[][]} */
function fold(children) {
  /** @type {Row[][]} */
  const groups = [];
  for (const child of children) {
    const before = groups[groups.length - 1];
    const alike = before && child.type === "agent" && before[0].type === "agent" && stem(before[0].name) === stem(child.name) && !child.children?.length;
    if (alike) before.push(child);
    else groups.push([child]);
  }
  return groups.flatMap((group) => (group.length > FOLD ? [group] : group.map((child) => [child])));
}

/** @param {string} name */
function stem(name) {
  return name.replace(/[0-9]+$/, "*");
}

/** @param {Line} line @param {number} index @param {number} height @param {string} [selected] */
function row(line, index, height, selected) {
  const { node, depth } = line;
  const open = node.type === "supervisor" ? String(!closed.get().has(line.key)) : null;
  return html`<div class="node" role="treeitem" aria-level=${depth + 1} aria-expanded=${open} aria-selected=${line.agent && line.agent.name === selected ? "true" : "false"}
      .style=${`top:${index * height}px`} @click=${() => pick(line)}>
    ${guides(line, height)}
    ${node.type === "supervisor" ? supervisor(line) : node.type === "fold" ? folded(line) : agentRow(line)}
  </div>`;
}

/** Elbows to the parent, rails of the levels above, a bracket where siblings restart together. @param {Line} line @param {number} height */
function guides(line, height) {
  if (!line.depth) return html`<span .style=${"width:8px"}></span>`;
  const half = height / 2;
  const x = (/** @type {number} */ level) => 14 + (level - 1) * 20;
  const rails = line.rails.map((shown, level) => (shown ? `M${x(level + 1) - 0.5} 0V${height}` : "")).join("");
  const elbow = `M${x(line.depth) - 0.5} 0V${line.last ? half : height}M${x(line.depth) - 0.5} ${half}h12`;
  return html`<svg class="guide" width=${x(line.depth) + 14} height=${height} aria-hidden="true"><path d=${rails + elbow} fill="none" stroke="var(--line)" /><path d=${line.bracket ? `M2 ${half - 8}v16` : ""} stroke="var(--info)" stroke-width="2" /></svg>`;
}

/** @param {Line} line */
function supervisor(line) {
  const { key, node, bracket } = line;
  const used = node.restarts_in_period ?? 0;
  const squares = Array.from({ length: Math.min(10, node.intensity) }, (_, index) => html`<i class=${index < used ? "full" : ""}></i>`);
  return html`<span>${closed.get().has(key) ? "▸" : "▾"}</span><b class="name cut" .style=${nameWidth(line)}>${visible(node.name)}</b><span class="group">${node.strategy}</span>
    <span class="group">restarts ${node.restarts_in_period ?? ""}${node.restarts_in_period === undefined ? "at most " : " of "}${node.intensity} in ${node.period}s</span>${used ? html`<span class="squares" aria-hidden="true">${squares}</span>` : null}
    ${bracket ? html`<span class="group">restarts together</span>` : null}`;
}

/** @param {Line} line */
function folded(line) {
  const { node, folded: rows = [] } = line;
  const counts = new Map();
  for (const one of rows) counts.set(one.state, (counts.get(one.state) ?? 0) + 1);
  return html`<span>▸</span><span class="name cut" .style=${nameWidth(line)}>${visible(node.name)} (${rows.length})</span>${[...counts].map(([state, count]) => html`<span class=${stateColour(state)}>${count} ${stateWord(state)}</span>`)}`;
}

/** @param {Line} line */
function agentRow(line) {
  const { node, agent } = line;
  const row = agent ?? node;
  return html`<span class="name cut" .style=${nameWidth(line)}>${visible(cutMiddle(node.name, 36))}</span>${stateTag(row.state)}
    <span class="muted">${agent ? since(agent) : ""}</span>
    ${bar(agent ? cores(agent) : null, 1)}<span class="muted">${agent ? bytes(agent.memory_bytes) : ""}</span>
    ${row.restarts ? html`<span class="muted">${number(row.restarts)} restarts</span>` : null}
    <span class="cut muted">${agent && row.state !== "running" ? visible(agent.end ?? "") : ""}</span>`;
}

/** States stand below one another, however deep the names. @param {Line} line */
function nameWidth(line) {
  return `flex-basis:${Math.max(80, 280 - 20 * line.depth - (line.node.type === "agent" ? 0 : 18))}px`;
}

/** One line of 3 px for each row: where something doesn't run. @param {Line[]} lines @param {number} height */
function strip(lines, height) {
  if (lines.length < 40) return null;
  const each = Math.min(3, height / lines.length);
  const marks = lines.map((line, index) => ({ state: line.agent?.state ?? "running", y: index * each })).filter((mark) => mark.state !== "running");
  const path = (/** @type {string} */ colour) => marks.filter((mark) => stateColour(mark.state) === colour).map((mark) => `M0 ${mark.y}h16`).join("");
  return html`<svg class="strip" width="20" height=${height} aria-hidden="true" @click=${(/** @type {any} */ event) => { event.currentTarget.closest(".tree").scrollTop = (event.offsetY / each) * ROW() - height / 2; }}>
    <path d=${path("bad")} stroke="var(--bad)" stroke-width="3" /><path d=${path("warn")} stroke="var(--warn)" stroke-width="3" /><path d=${path("idle") + path("info")} stroke="var(--idle)" stroke-width="3" /></svg>`;
}

function scrolled(/** @type {any} */ event) {
  view.set({ top: event.currentTarget.scrollTop, height: event.currentTarget.clientHeight });
}

/** @param {Line} line */
function pick(line) {
  if (line.node.type === "agent") adjust({ agent: line.node.name }, Boolean(route.peek().params.agent));
  else if (line.node.type === "fold") opened.set(new Set([...opened.peek(), line.node.parent]));
  else toggle(line.key);
}

/** @param {string} key */
function toggle(key) {
  const next = new Set(closed.peek());
  if (!next.delete(key)) next.add(key);
  closed.set(next);
}

/** @param {KeyboardEvent} event @param {Line[]} lines */
function press(event, lines) {
  const selected = route.peek().params.agent;
  const at = lines.findIndex((line) => line.agent?.name === selected);
  const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
  if (!step) return;
  for (let next = at + step; next >= 0 && next < lines.length; next += step) {
    if (!lines[next].agent) continue;
    adjust({ agent: lines[next].agent?.name ?? null }, true);
    break;
  }
  event.preventDefault();
}
