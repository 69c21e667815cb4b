// What agents and models have cost: in some days and in the last hour, what failed of it, and what is left of budgets.

import { ask } from "../core/ask.js";
import { findAgent, now } from "../core/feed.js";
import { html, keyed } from "../core/html.js";
import { adjust, link, route } from "../core/route.js";
import { cutMiddle, duration, number, plural, visible } from "../parts/text/format.js";
import { refused } from "../parts/reply.js";
import { bar } from "../parts/state.js";
import { sortRows } from "../parts/table.js";

/** @typedef {Record<string, any>} Row */
/** `spent` of the days that are chosen and `hour`: tokens, and the cost, null if a model without a price was asked. The rest is of the last hour.
 * @typedef {{name: string, spent: Sum, hour: Sum, calls: number, questions: number, failed: number, retried: number, left?: number, budget?: Row}} Spender */
/** @typedef {{tokens: number, cost: number|null}} Sum */

const SHOWN = 12; // what is below the table is to be seen, too
const MOST = 200;
const MUCH = 0.1; // of the questions failed
const compact = new Intl.NumberFormat("en", { notation: "compact", minimumFractionDigits: 1, maximumFractionDigits: 1 });

/** @type {import("../parts/table.js").Column[]} */
const COLUMNS = [
  { name: "name", title: "agent", sort: (row) => row.name, cell: (row) => row.name },
  { name: "cost", title: "cost", numeric: true, sort: (row) => row.spent.cost, cell: (row) => money(row.spent) },
  { name: "tokens", title: "tokens", numeric: true, sort: (row) => row.spent.tokens, cell: (row) => tokenCount(row.spent.tokens) },
  { name: "hour", title: "cost/h", least: 640, numeric: true, sort: (row) => row.hour.cost, cell: (row) => money(row.hour) },
  { name: "hourtokens", title: "tokens/h", least: 500, numeric: true, sort: (row) => row.hour.tokens, cell: (row) => tokenCount(row.hour.tokens) },
  { name: "trend", title: "trend", least: 900, numeric: true, sort: (row) => row.trend, cell: trend },
  { name: "failed", title: "failed/h", numeric: true, sort: (row) => (row.questions ? row.failed / row.questions : null), cell: failed },
  { name: "retried", title: "retried/h", least: 760, numeric: true, sort: (row) => (row.questions ? row.retried / row.questions : null), cell: (row) => (row.questions ? number(row.retried) : "–") },
  { name: "left", title: "budget left", least: 560, sort: (row) => (row.left === undefined ? null : -row.left), cell: left },
  { name: "why", title: "look", least: 760, sort: (row) => row.name, cell: (row) => html`<span class="nowrap"><a class="text" href=${link("logs", { of: own(row.name), range: days() > 1 ? "604800" : "86400" })}>logs</a> <a class="text" href=${link("events", { filter: own(row.name), from: String(begin(days())) })}>events</a></span>` },
];
const SPANS = /** @type {[number, string][]} */ ([[1, "today"], [2, "since yesterday"], [7, "in 7 days"], [30, "in 30 days"]]);

/** For how many days, with today. */
function days() {
  return SPANS.find(([count]) => String(count) === route.get().params.days)?.[0] ?? 1;
}

/** When the first of so many days began, in seconds since the epoch: USAGE's days are those of UTC. @param {number} count */
function begin(count) {
  return (Math.floor(now() / 86_400_000) - count + 1) * 86_400;
}

/** The last hour's tokens as a multiple of an average hour's since `from`, null where nothing was spent before. @param {Sum} spent @param {Sum} hour @param {number} from @param {number} at */
export function trendOf(spent, hour, from, at) {
  const hours = Math.max(1, (at - from) / 3600);
  if (hours > 1 && hour.tokens >= spent.tokens) return null;
  return spent.tokens ? (hour.tokens * hours) / spent.tokens : null;
}

/** @param {Row} row */
function trend({ trend: times, hour }) {
  if (times === null) return hour.tokens ? html`<span class="muted" title="all of it in the last hour">new</span>` : "–";
  return html`<span class=${times > 2 ? "warn" : ""} title="the last hour's tokens, as a multiple of an average hour's">×${number(times, 1)} ${times > 1.1 ? "↑" : times < 0.9 ? "↓" : "→"}</span>`;
}

/** The agents that have used the model, and what each model was used for: null while it isn't known. */
export function spending() {
  const from = begin(days());
  const [spent, hour] = [ask("USAGE", { since: from, by_model: true, total: true }, 10), ask("USAGE", { hour: true }, 5)];
  if (spent === null || hour === null) return null;
  if (spent.success === false) return refused(spent);
  if (hour.success === false) return refused(hour);
  const budgets = tightest(hour.budgets);
  const rows = add("name", spent.usage, hour.usage).map((row) => ({ ...row, ...budgets.get(row.name), trend: trendOf(row.spent, row.hour, from, now() / 1000) }));
  const models = add("model", spent.usage, hour.usage);
  return { rows, models, currency: hour.currency };
}

/** The table that the page begins with. @param {Spender[]} rows @param {string|null} currency */
export function spenders(rows, currency) {
  const sort = route.get().params.sort ?? "-cost";
  const width = document.getElementById("main")?.clientWidth ?? innerWidth;
  const columns = COLUMNS.filter((column) => (column.least ?? 0) <= width);
  const all = route.get().params.all === "1";
  const sorted = sortRows(rows.toSorted((one, other) => other.spent.tokens - one.spent.tokens), COLUMNS, sort);
  const heading = html`<div class="heading"><h2 class="label">Spending${currency ? `, in ${currency}` : ""}</h2>
    <div class="windows" role="group" aria-label="time of the spending">${SPANS.map(([count, word]) => html`<button aria-pressed=${String(count === days())} @click=${() => adjust({ days: count === 1 ? null : String(count) }, true)}>${word}</button>`)}</div></div>`;
  if (!rows.length) return html`<section>${heading}<p class="block empty">No agent has asked the model in this time.</p></section>`;
  return html`<section>${heading}
    <div class="wide block" tabindex="0" role="group" aria-label="agents by cost"><table class="list-table"><thead><tr>${columns.map((column) => head(column, sort))}</tr></thead>
    <tbody>${sorted.slice(0, all ? MOST : SHOWN).map((row) => keyed(row.name, html`<tr><td>${named(row.name)}</td>${columns.slice(1).map((column) => html`<td class=${column.numeric ? "number" : ""}>${column.cell(row)}</td>`)}</tr>`))}</tbody></table></div>
    ${sorted.length > SHOWN ? html`<p class="after"><button @click=${() => adjust({ all: all ? null : "1" }, true)}>${all ? `the first ${SHOWN}` : sorted.length > MOST ? `the first ${MOST} of ${number(sorted.length)} agents` : `all ${plural(sorted.length, "agent")}`}</button></p>` : null}
    <p class="muted after">Days begin at midnight UTC, /h is the last hour. <code>agentos usage --by agent,model,day</code></p></section>`;
}

/** Tokens, as `85.4M` where there is little room. @param {number} tokens */
function tokenCount(tokens) {
  if (innerWidth >= 640 || tokens < 100_000) return number(tokens);
  return html`<span title=${number(tokens)}>${compact.format(tokens)}</span>`;
}

/** @param {import("../parts/table.js").Column} column @param {string} sort */
function head(column, sort) {
  const chosen = sort.replace("-", "") === column.name;
  const next = chosen && sort[0] === "-" ? column.name : `-${column.name}`;
  return html`<th class=${column.numeric ? "number" : ""} aria-sort=${chosen ? (sort[0] === "-" ? "descending" : "ascending") : null}><button class="quiet" @click=${() => adjust({ sort: next }, true)}>${column.title}${chosen ? (sort[0] === "-" ? " ↓" : " ↑") : ""}</button></th>`;
}

/** @param {string} name */
function own(name) {
  return name.slice(name.lastIndexOf("/") + 1);
}

/** USAGE calls an agent that another one spawned PARENT/NAME. @param {string} name */
function named(name) {
  const agent = findAgent(name) ?? findAgent(own(name));
  const shown = html`<span class="nowrap" title=${visible(name)}>${visible(cutMiddle(name, innerWidth < 500 ? 18 : 28))}</span>`;
  return agent ? html`<a class="text" href=${link("model", { ...route.peek().params, agent: agent.name })}>${shown}</a>` : shown;
}

/** @param {Sum} sum */
export function money({ tokens, cost }) {
  if (cost === null) return "–";
  return tokens || cost ? number(cost, cost >= 100 ? 0 : cost >= 1 ? 2 : 4) : "0";
}

/** @param {Row} row */
export function failed(row) {
  if (!row.questions) return "–";
  return html`<span class=${row.failed / row.questions > MUCH ? "bad" : row.failed ? "warn" : ""} title="without an answer, of the questions that ended">${number(row.failed)} of ${number(row.questions)}</span>`;
}

/** @param {Row} row */
function left(row) {
  if (!row.budget) return html`<span class="muted">none</span>`;
  const { what, most, used, per } = row.budget;
  return html`<span class="nowrap" title=${`${number(used, what === "money" ? 2 : 0)} of ${number(most, what === "money" ? 2 : 0)} ${what} per ${duration(per * 1000)} are used`}>${bar(used, most)} ${number(100 * row.left)}%</span>`;
}

/** Of each name the budget with the smallest share left. @param {Row[]} budgets @returns {Map<string, {left: number, budget: Row}>} */
function tightest(budgets) {
  const found = new Map();
  for (const budget of budgets) {
    const share = budget.most > 0 ? Math.max(0, 1 - budget.used / budget.most) : 0;
    const before = found.get(budget.name);
    if (!before || share < before.left) found.set(budget.name, { left: share, budget });
  }
  return found;
}

/** The rows of the days and of the last hour, added by `key`. @param {"name"|"model"} key @param {Row[]} spent @param {Row[]} hour @returns {Spender[]} */
function add(key, spent, hour) {
  /** @type {Map<string, Spender>} */
  const found = new Map();
  for (const [part, rows] of /** @type {["spent"|"hour", Row[]][]} */ ([["spent", spent], ["hour", hour]])) {
    for (const row of rows) {
      const sum = found.get(row[key]) ?? { name: row[key], spent: { tokens: 0, cost: 0 }, hour: { tokens: 0, cost: 0 }, calls: 0, questions: 0, failed: 0, retried: 0 };
      found.set(row[key], sum);
      const cost = sum[part].cost;
      sum[part] = { tokens: sum[part].tokens + row.tokens, cost: cost === null || row.cost === null ? null : cost + row.cost };
      sum.calls += part === "spent" ? row.calls : 0;
      sum.questions += row.questions ?? 0;
      sum.failed += row.failed ?? 0;
      sum.retried += row.retried ?? 0;
    }
  }
  return [...found.values()];
}
