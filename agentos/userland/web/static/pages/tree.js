// Tree: supervisors and agents in the order of their declaration. Only rows in view are in the document.

import { ask, forget } from "../core/ask.js";
import { agents } from "../core/feed.js";
import { html, keyed } from "../core/html.js";
import { adjust, route } from "../core/route.js";
import { signal } from "../core/signals.js";
import { plural } from "../parts/text/format.js";
import { shown } from "../parts/reply.js";
import { ORDER, stateColour, urgency } from "../parts/state.js";
import { agentRow, chip, escalations, foldRow, notice, supervisorRow } from "../parts/treerow.js";
import { since } from "./overview.js";

/** @typedef {Record<string, any>} Row */
/** @typedef {import("../parts/treerow.js").Line} Line */

const FOLD = 30; // equal siblings
const ROW = () => (matchMedia("(pointer: coarse)").matches ? 44 : 28);
const closed = signal(/** @type {Set<string>} */ (new Set()));
const opened = signal(/** @type {Set<string>} */ (new Set()));
const view = signal({ top: 0, height: 800 });
/** The line that keys act on: of the selected agent, unless they moved to another one. */
const cursor = signal("");
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
  const at = cursorOf(lines);
  const marks = escalations();
  return html`<div class="toolbar"><span class="muted">${plural(rows.size, "agent")} in ${plural(lines.filter((line) => line.node.type === "supervisor").length, "supervisor")}</span>
      <button aria-pressed=${String(route.get().params.sort === "attention")} title="of siblings, those that need attention first" @click=${() => adjust({ sort: route.peek().params.sort ? null : "attention" }, true)}>attention first</button></div>
    <div class="tree block" role="tree" tabindex="0" aria-label="supervision tree" aria-activedescendant=${at < first || at >= first + count ? null : `line-${at}`} @scroll=${scrolled} @keydown=${(/** @type {KeyboardEvent} */ event) => press(event, lines, marks.given)}>
      <div class="node heads" role="presentation"><span>name</span><span>state</span><span class="number">for</span><span>cpu</span><span>memory</span><span>restarts</span><span>last end</span></div>
      <div role="presentation" .style=${`position:relative;height:${lines.length * height}px`}>
        ${lines.slice(first, first + count).map((line, index) => keyed(line.key, row(line, first + index, height, first + index === at, marks)))}
        ${strip(lines, viewHeight)}
      </div>
    </div>`;
}

/** @param {Line[]} lines */
function cursorOf(lines) {
  const at = lines.findIndex((line) => line.key === cursor.get());
  const selected = route.get().params.agent;
  return at >= 0 ? at : lines.findIndex((line) => line.agent && line.agent.name === selected);
}

/** @param {Row} node @param {string} path @param {number} depth @param {boolean[]} rails @param {boolean} last @param {string} bracket @param {Line[]} lines @param {Map<number, Row>} rows */
function walk(node, path, depth, rails, last, bracket, lines, rows) {
  const key = `${path}/${node.name}`;
  const agent = node.type === "agent" ? rows.get(node.id) : undefined;
  const shut = closed.get().has(key);
  lines.push({ key, depth, node, agent, last, rails, bracket, shut });
  if (shut) return;
  const together = node.strategy === "one_for_all" || node.strategy === "rest_for_one";
  const selected = route.get().params.agent; // is never folded
  const sorted = route.get().params.sort === "attention";
  const children = sorted ? urgentFirst(node.children ?? [], rows) : node.children ?? [];
  const inner = depth ? [...rails, !last] : [];
  const groups = opened.get().has(key) ? children.map((/** @type {Row} */ child) => [child]) : fold(children, sorted ? rows : null);
  groups.forEach((/** @type {Row[]} */ group, /** @type {number} */ index) => {
    const isLast = index === groups.length - 1;
    const place = !together ? "" : groups.length === 1 ? "only" : !index ? "first" : isLast ? "last" : "middle";
    if (group.length > 1 && !group.some((child) => child.name === selected)) {
      const folded = group.map((child) => rows.get(child.id) ?? child);
      lines.push({ key: `${key}/*${group[0].name}`, depth: depth + 1, node: { type: "fold", name: stem(group[0].name), parent: key }, folded, last: isLast, rails: inner, bracket: place });
    } else {
      group.forEach((child, position) => walk(child, key, depth + 1, inner, isLast && position === group.length - 1, place, lines, rows));
    }
  });
}

/** Siblings by the most urgent agent at or below each; equal ones stay in their order. @param {Row[]} children @param {Map<number, Row>} rows @returns {Row[]} */
export function urgentFirst(children, rows) {
  const worst = (/** @type {Row} */ node) => Math.min(node.type === "agent" ? urgency(rows.get(node.id) ?? node) : Infinity, ...(node.children ?? []).map(worst));
  return children.map((child) => ({ child, place: worst(child) })).sort((one, other) => (one.place === other.place ? 0 : one.place - other.place)).map((one) => one.child);
}

/** Runs of more than 30 agents with names that differ by their number only; with `rows`, of none that needs attention. @param {Row[]} children @param {Map<number, Row>|null} rows @returns {Row[][]} */
export function fold(children, rows) {
  const calm = (/** @type {Row} */ child) => !rows || urgency(rows.get(child.id) ?? child) > ORDER.indexOf("backing_off");
  /** @type {Row[][]} */
  const groups = [];
  for (const child of children) {
    const before = groups[groups.length - 1];
    const alike = before && child.type === "agent" && before[0].type === "agent" && stem(before[0].name) === stem(child.name) && !child.children?.length && calm(before[0]);
    if (alike) before.push(child);
    else groups.push([child]);
  }
  return groups.flatMap((group) => (group.length > FOLD ? [group] : group.map((child) => [child])));
}

/** @param {string} name */
function stem(name) {
  return name.replace(/[0-9]+$/, "*");
}

/** @param {Line} line @param {number} index @param {number} height @param {boolean} current @param {ReturnType<typeof escalations>} marks */
function row(line, index, height, current, { given, path }) {
  const { node, depth } = line;
  const open = node.type === "supervisor" ? String(!line.shut) : node.type === "fold" ? "false" : null;
  const mark = chip(given.get(line.key));
  return html`<div class=${`node${current ? " current" : ""}${path.has(line.key) ? " escalated" : ""}`} id=${`line-${index}`} role="treeitem" aria-level=${depth + 1} aria-expanded=${open} aria-selected=${line.agent && line.agent.name === route.get().params.agent ? "true" : "false"}
      .style=${`top:${index * height}px`} @click=${() => pick(line, given)}>
    ${node.type === "supervisor" ? supervisorRow(line, height, mark) : node.type === "fold" ? foldRow(line, height) : agentRow(line, height, line.agent ? since(line.agent) : "", mark)}
  </div>`;
}

/** One line of 3 px for each row: where something doesn't run. @param {Line[]} lines @param {number} height */
function strip(lines, height) {
  if (lines.length < 40) return null;
  const each = Math.min(3, height / lines.length);
  const marks = lines.map((line, index) => ({ state: worstState(line), y: index * each })).filter((mark) => mark.state !== "running");
  const path = (/** @type {string} */ colour) => marks.filter((mark) => stateColour(mark.state) === colour).map((mark) => `M0 ${mark.y}h16`).join("");
  return html`<svg class="strip" width="20" height=${height} aria-hidden="true" @click=${(/** @type {any} */ event) => { event.currentTarget.closest(".tree").scrollTop = (event.offsetY / each) * ROW() - height / 2; }}>
    <path d=${path("bad")} stroke="var(--bad)" stroke-width="3" /><path d=${path("warn")} stroke="var(--warn)" stroke-width="3" /><path d=${path("idle") + path("info")} stroke="var(--idle)" stroke-width="3" /></svg>`;
}

/** Of an agent, or of those that are folded into the line. @param {Line} line */
function worstState({ agent, folded }) {
  if (!folded) return agent?.state ?? "running";
  const states = new Set(folded.map((one) => one.state));
  return ["failed", "backing_off"].find((state) => states.has(state)) ?? "running";
}

function scrolled(/** @type {any} */ event) {
  view.set({ top: event.currentTarget.scrollTop, height: event.currentTarget.clientHeight });
}

/** @param {Line} line @param {Map<string, Row>} given */
function pick(line, given) {
  cursor.set(line.key);
  notice(given.get(line.key));
  if (line.node.type === "agent") adjust({ agent: line.node.name }, Boolean(route.peek().params.agent));
  else toggle(line);
}

/** @param {Line} line */
function toggle({ node, key }) {
  const [kept, name] = node.type === "fold" ? [opened, node.parent] : [closed, key];
  const next = new Set(kept.peek());
  if (!next.delete(name)) next.add(name);
  kept.set(next);
}

/** Keys as WAI-ARIA's tree has them, and j and k. @param {KeyboardEvent} event @param {Line[]} lines @param {Map<string, Row>} given */
function press(event, lines, given) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const at = cursorOf(lines);
  const line = lines[at];
  const branch = line && line.node.type !== "agent";
  const isOpen = branch && line.node.type === "supervisor" && !line.shut;
  const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, Home: -1e9, End: 1e9 }[event.key];
  if (step !== undefined) moveTo(lines, at < 0 && step < lines.length ? 0 : at + step, event);
  else if (event.key === "ArrowRight" && branch) isOpen ? moveTo(lines, at + 1, event) : toggle(line);
  else if (event.key === "ArrowLeft" && isOpen) toggle(line);
  else if (event.key === "ArrowLeft" && line) moveTo(lines, lines.findLastIndex((one, index) => index < at && one.depth < line.depth), event);
  else if ((event.key === "Enter" || event.key === " ") && line) pick(line, given);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

/** @param {Line[]} lines @param {number} index @param {KeyboardEvent} event */
function moveTo(lines, index, event) {
  const at = Math.max(0, Math.min(lines.length - 1, index));
  cursor.set(lines[at].key);
  if (route.peek().params.agent && lines[at].agent) adjust({ agent: lines[at].agent?.name ?? null }, true);
  const box = /** @type {HTMLElement} */ (event.currentTarget);
  const height = ROW();
  if (at * height < box.scrollTop) box.scrollTop = at * height;
  else if ((at + 2) * height > box.scrollTop + box.clientHeight) box.scrollTop = (at + 2) * height - box.clientHeight; // the headings have one
}
