// Model: the questions that wait in the line or are in flight, the providers, the budgets.

import { ask } from "../core/ask.js";
import { kernel } from "../core/feed.js";
import { html } from "../core/html.js";
import { link } from "../core/route.js";
import { OF_MODEL, charts } from "../parts/charts/charts.js";
import { clock, countdown, duration, number, visible } from "../parts/text/format.js";
import { shown } from "../parts/reply.js";
import { bar } from "../parts/state.js";

/** @typedef {Record<string, any>} Row */

export function modelPage() {
  clock.get();
  const model = kernel.get()?.model;
  return html`
    <section><h2 class="label">Model</h2><p>${model ? html`<span>${visible(model.model)} by ${visible(model.name)}: <span class=${model.state === "ok" ? "ok" : "warn"}>${model.state}</span> ${model.until ? countdown(model.until) : ""} <span class="muted">${visible(model.reason ?? "")}</span></span>` : "no model is configured"}</p></section>
    ${shown(ask("METRICS_SYSTEM", {}, 2), (reply) => line(reply.metrics.llm))}
    ${charts(null, OF_MODEL)}`;
}

/** @param {Row} llm */
function line(llm) {
  return html`<section><h2 class="label">Line</h2><p class="count-row"><span><span class="figure">${number(llm.waiting.length)}</span><span class="muted">wait</span></span>
      <span><span class="figure">${number(llm.in_flight.length)}</span><span class="muted">in flight</span></span>
      <span title="Jain's index: 1 is entirely fair"><span class="figure">${number(llm.jain, 3)}</span><span class="muted">fairness</span></span></p></section>
    ${questions(llm)}
    ${llm.budgets?.length ? html`<section><h2 class="label">Budgets of all agents together</h2>${budgets(llm.budgets)}</section>` : null}
    ${llm.providers?.length ? html`<section><h2 class="label">Providers</h2><table class="list-table block"><thead><tr><th>provider</th><th>model</th><th>state</th><th>reason</th></tr></thead><tbody>${llm.providers.map((/** @type {Row} */ one) => html`<tr><td>${visible(one.name)}</td><td>${visible(one.model)}</td><td class=${one.state === "ok" ? "ok" : "warn"}>${one.state}</td><td class="muted">${visible(one.reason ?? "")}</td></tr>`)}</tbody></table></section>` : null}`;
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
    <tbody>${rows.slice(0, 100).map((one) => html`<tr><td><a class="text" href=${link("model", { agent: one.agent })}>${visible(one.agent)}</a></td><td class="number">${one.position ?? one.state ?? "in flight"}</td><td class="spare">${one.class ?? ""}</td><td class="number">${duration(one.since_ms)}</td><td class="number spare">${number(one.tokens_guess ?? one.tokens)}</td></tr>`)}</tbody></table></section>`;
}
