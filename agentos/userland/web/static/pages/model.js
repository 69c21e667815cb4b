// Model: what agents spend, models and providers, the questions that wait in the line or are in flight, the budgets.

import { ask } from "../core/ask.js";
import { html } from "../core/html.js";
import { link } from "../core/route.js";
import { OF_MODEL, charts } from "../parts/charts/charts.js";
import { clock, countdown, cutMiddle, duration, number, plural, visible } from "../parts/text/format.js";
import { shown } from "../parts/reply.js";
import { bar } from "../parts/state.js";
import { failed, money, spenders, spending } from "./spending.js";

/** @typedef {Record<string, any>} Row */

const SHOWN = 30; // questions

export function modelPage() {
  clock.get();
  const spent = spending();
  const known = spent !== null && "rows" in spent;
  return shown(ask("METRICS_SYSTEM", {}, 2), ({ metrics: { llm } }) => html`
    <div class="beside">${known ? spenders(spent.rows, spent.currency) : html`<section>${spent}</section>`}${models(llm.providers ?? [], known ? spent.models : [])}</div>
    ${line(llm)}
    ${charts(null, OF_MODEL)}`);
}

/** The models that the configuration names, that are unavailable, or were asked in this time. @param {Row[]} providers @param {Row[]} used */
function models(providers, used) {
  const named = providers.map((one) => ({ ...one, use: used.find((row) => row.name === one.model) }));
  const others = used.filter((row) => !providers.some((one) => one.model === row.name)).map((use) => ({ name: "", model: use.name, state: "", reason: "", until: null, use }));
  if (!named.length && !others.length) return html`<section><h2 class="label">Models</h2><p class="block empty">No model is configured.</p></section>`;
  return html`<section><h2 class="label">Models</h2><div class="wide block" tabindex="0" role="group" aria-label="models"><table class="list-table"><thead><tr><th>model</th><th>provider</th><th>state</th><th class="number">cost</th><th class="number spare">tokens</th><th class="number">failed/h</th></tr></thead>
    <tbody>${[...named, ...others].map((/** @type {Row} */ one) => html`<tr><td>${visible(one.model)}</td><td>${visible(one.name ?? "")}</td><td class=${one.state === "ok" ? "ok" : "warn"}>${one.state} ${one.until ? countdown(one.until) : ""}<span class="muted">${one.reason ? ` ${visible(one.reason)}` : ""}</span></td>
      <td class="number">${one.use ? money(one.use.spent) : "0"}</td><td class="number spare">${number(one.use?.spent.tokens ?? 0)}</td><td class="number">${one.use ? failed(one.use) : "–"}</td></tr>`)}</tbody></table></div></section>`;
}

/** @param {Row} llm */
function line(llm) {
  return html`<section><h2 class="label">Line</h2><p class="count-row"><span><span class="figure">${number(llm.waiting.length)}</span><span class="muted">wait</span></span>
      <span><span class="figure">${number(llm.in_flight.length)}</span><span class="muted">in flight</span></span>
      <span title="Jain's index: 1 is entirely fair"><span class="figure">${number(llm.jain, 3)}</span><span class="muted">fairness</span></span></p></section>
    ${questions(llm)}
    ${llm.budgets?.length ? html`<section><h2 class="label">Budgets of all agents together</h2>${budgets(llm.budgets)}</section>` : null}`;
}

/** @param {Row[]} list */
function budgets(list) {
  return html`<table class="list-table block"><tbody>${list.map((one) => html`<tr><td>${visible(one.name)}</td><td>${one.what}</td><td>${bar(one.used, one.most)}</td><td class="number">${number(one.used)} of ${number(one.most)}</td><td class="muted">per ${duration(one.per * 1000)}</td></tr>`)}</tbody></table>`;
}

/** Questions in the order of their places. @param {Row} llm */
function questions(llm) {
  const rows = [...llm.in_flight, ...llm.waiting];
  if (!rows.length) return html`<section><h2 class="label">Questions</h2><p class="block empty">No question waits.</p></section>`;
  return html`<section><h2 class="label">Questions</h2><table class="list-table block"><thead><tr><th>agent</th><th class="number">place</th><th class="spare">class</th><th class="number">since</th><th class="number spare">tokens, guessed</th></tr></thead>
    <tbody>${rows.slice(0, SHOWN).map((one) => html`<tr><td><a class="text" href=${link("model", { agent: one.agent })}><span title=${visible(one.agent)}>${visible(cutMiddle(one.agent, innerWidth < 500 ? 18 : 40))}</span></a></td><td class="number nowrap">${one.position ?? one.state ?? "in flight"}</td><td class="spare">${one.class ?? ""}</td><td class="number">${duration(one.since_ms)}</td><td class="number spare">${number(one.tokens_guess ?? one.tokens)}</td></tr>`)}</tbody></table>
    ${rows.length > SHOWN ? html`<p class="muted after">${plural(rows.length - SHOWN, "other question")}</p>` : null}</section>`;
}
