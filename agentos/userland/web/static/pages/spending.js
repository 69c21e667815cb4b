// What agents and models have cost: today and in the last hour, what failed of it, and what is left of budgets.

import { ask } from "../core/ask.js";
import { findAgent, now } from "../core/feed.js";
import { html, keyed } from "../core/html.js";
import { adjust, link, route } from "../core/route.js";
import { cutMiddle, duration, number, plural, visible } from "../parts/text/format.js";
import { refused } from "../parts/reply.js";
import { bar } from "../parts/state.js";
import { sortRows } from "../parts/table.js";

/** @typedef {Record<string, any>} Row */
/** `today` and `hour`: tokens, and the cost, null if a model without a price was asked. The rest is of the last hour.
 * @typedef {{name: string, today: Sum, hour: Sum, calls: number, questions: number, failed: number, retried: number, left?: number, budget?: Row}} Spender */
/** @typedef {{tokens: number, cost: number|null}} Sum */

const SHOWN = 50;
const MUCH = 0.1; // of the questions failed

/** @type {import("../parts/table.js").Column[]} */
const COLUMNS = [
  { name: "name", title: "agent", sort: (row) => row.name, cell: (row) => row.name },
  { name: "cost", title: "cost", numeric: true, sort: (row) => row.today.cost, cell: (row) => money(row.today) },
  { name: "tokens", title: "tokens", least: 500, numeric: true, sort: (row) => row.today.tokens, cell: (row) => number(row.today.tokens) },
  { name: "hour", title: "cost/h", least: 640, numeric: true, sort: (row) => row.hour.cost, cell: (row) => money(row.hour) },
  { name: "hourtokens", title: "tokens/h", numeric: true, sort: (row) => row.hour.tokens, cell: (row) => number(row.hour.tokens) },
  { name: "failed", title: "failed/h", numeric: true, sort: (row) => (row.questions ? row.failed / row.questions : null), cell: failed },
  { name: "retried", title: "retried/h", least: 760, numeric: true, sort: (row) => (row.questions ? row.retried / row.questions : null), cell: (row) => (row.questions ? number(row.retried) : "–") },
  { name: "left", title: "budget left", least: 560, sort: (row) => (row.left === undefined ? null : -row.left), cell: left },
];

/** The agents that have used the model, and what each model was used for: null while it isn't known. */
export function spending() {
  const day = Math.floor(now() / 86_400_000) * 86_400; // USAGE's days are those of UTC
  const [today, hour] = [ask("USAGE", { since: day, by_model: true }, 10), ask("USAGE", { hour: true }, 5)];
  if (today === null || hour === null) return null;
  if (today.success === false) return refused(today);
  if (hour.success === false) return refused(hour);
  const budgets = tightest(hour.budgets);
  const rows = add("name", today.usage, hour.usage).map((row) => ({ ...row, ...budgets.get(row.name) }));
  const models = add("model", today.usage, hour.usage);
  return { rows, models, currency: hour.currency };
}

/** The table that the page begins with. @param {Spender[]} rows @param {string|null} currency */
export function spenders(rows, currency) {
  const sort = route.get().params.sort ?? "-cost";
  const width = document.getElementById("main")?.clientWidth ?? innerWidth;
  const columns = COLUMNS.filter((column) => (column.least ?? 0) <= width);
  const sorted = sortRows(rows.toSorted((one, other) => other.today.tokens - one.today.tokens), COLUMNS, sort);
  if (!rows.length) return html`<section><h2 class="label">Spending today</h2><p class="block empty">No agent has asked the model today.</p></section>`;
  return html`<section><h2 class="label">Spending today${currency ? `, in ${currency}` : ""}</h2>
    <div class="wide block" tabindex="0" role="group" aria-label="agents by cost"><table class="list-table"><thead><tr>${columns.map((column) => head(column, sort))}</tr></thead>
    <tbody>${sorted.slice(0, SHOWN).map((row) => keyed(row.name, html`<tr><td>${named(row.name)}</td>${columns.slice(1).map((column) => html`<td class=${column.numeric ? "number" : ""}>${column.cell(row)}</td>`)}</tr>`))}</tbody></table></div>
    <p class="muted after">Today since midnight UTC, /h in the last hour. ${sorted.length > SHOWN ? `${plural(sorted.length, "agent")} in all: ` : ""}<code>agentos usage --by agent,model,day</code></p></section>`;
}

/** @param {import("../parts/table.js").Column} column @param {string} sort */
function head(column, sort) {
  const chosen = sort.replace("-", "") === column.name;
  const next = chosen && sort[0] === "-" ? column.name : `-${column.name}`;
  return html`<th class=${column.numeric ? "number" : ""} aria-sort=${chosen ? (sort[0] === "-" ? "descending" : "ascending") : null}><button class="quiet" @click=${() => adjust({ sort: next }, true)}>${column.title}${chosen ? (sort[0] === "-" ? " ↓" : " ↑") : ""}</button></th>`;
}

/** USAGE calls an agent that another one spawned PARENT/NAME. @param {string} name */
function named(name) {
  const agent = findAgent(name) ?? findAgent(name.slice(name.lastIndexOf("/") + 1));
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

/** The rows of today and of the last hour, added by `key`. @param {"name"|"model"} key @param {Row[]} today @param {Row[]} hour @returns {Spender[]} */
function add(key, today, hour) {
  /** @type {Map<string, Spender>} */
  const found = new Map();
  for (const [part, rows] of /** @type {["today"|"hour", Row[]][]} */ ([["today", today], ["hour", hour]])) {
    for (const row of rows) {
      const sum = found.get(row[key]) ?? { name: row[key], today: { tokens: 0, cost: 0 }, hour: { tokens: 0, cost: 0 }, calls: 0, questions: 0, failed: 0, retried: 0 };
      found.set(row[key], sum);
      const cost = sum[part].cost;
      sum[part] = { tokens: sum[part].tokens + row.tokens, cost: cost === null || row.cost === null ? null : cost + row.cost };
      sum.calls += part === "today" ? row.calls : 0;
      sum.questions += row.questions ?? 0;
      sum.failed += row.failed ?? 0;
      sum.retried += row.retried ?? 0;
    }
  }
  return [...found.values()];
}
