// One agent: beside every page when it is selected, or as a page of its own.

import { ask } from "../../core/ask.js";
import { findAgent, kernel, role, seesContents } from "../../core/feed.js";
import { html, keyed } from "../../core/html.js";
import { adjust, link, route } from "../../core/route.js";
import { signal } from "../../core/signals.js";
import { actionButton, confirmation, possible } from "../../parts/actions.js";
import { charts } from "../../parts/charts/charts.js";
import { cores } from "../../parts/charts/cpu.js";
import { bytes, duration, exactTime, number, visible } from "../../parts/text/format.js";
import { sendForm } from "../../parts/forms.js";
import { facts, json, shown } from "../../parts/reply.js";
import { bar, stateTag } from "../../parts/state.js";
import { calls } from "../audit.js";
import { changesTab } from "./changes.js";
import { execTab } from "./exec.js";
import { quote, reason, since } from "../overview.js";
import { rights } from "./rights.js";
import { recordingsOf } from "../recordings/list.js";
import { traceOf } from "../trace.js";

/** @typedef {Record<string, any>} Row */

const unfolded = signal(/** @type {Set<string>} */ (new Set()));
const TABS = ["now", "trace", "logs", "recordings", "changes", "limits", "rights", "state", "calls", "exec", "send"];
const OF_CONTENTS = ["trace", "calls"]; // of the audit log
const OF_OPERATOR = ["changes", "rights", "state", "exec", "send"];

/** @param {string} name @param {boolean} whole as a page of its own */
export function panel(name, whole) {
  const row = findAgent(name);
  const tab = route.get().params.tab ?? "now";
  const place = `panel ${name}`;
  if (!row) {
    return html`<aside class="panel" aria-label=${name}><header><div class="line title"><h2>${visible(name)}</h2>${closer(name, whole)}</div></header>
      <div class="body"><p class="muted">${kernel.get() ? "There is no agent of this name now." : ""}</p></div></aside>`;
  }
  return html`<aside class="panel" aria-label=${`agent ${name}`}>
    <header>
      <div class="line title"><h2>${visible(name)}</h2>${closer(name, whole)}</div>
      <div class="line">${stateTag(row.state)}<span class="muted">${since(row)}</span></div>
      <div class="line acts">${possible(row).map((action) => actionButton(action, [name], place))}</div>
      ${confirmation(place)}
    </header>
    <div class="tabs" role="tablist">${TABS.filter((one) => isShown(one, row)).map((one) => html`<button role="tab" aria-selected=${one === tab ? "true" : "false"} @click=${() => adjust({ tab: one === "now" ? null : one }, true)}>${one}</button>`)}</div>
    <div class="body" role="tabpanel" aria-label=${tab}>${keyed(`${name} ${tab}`, html`<div class="tab">${content(tab, row)}</div>`)}</div>
  </aside>`;
}

/** Whether there is something behind a tab that this session may see. @param {string} tab @param {Row} row */
function isShown(tab, row) {
  if (role.get() !== "operator" && (OF_OPERATOR.includes(tab) || (OF_CONTENTS.includes(tab) && !seesContents()))) return false;
  if (tab === "recordings" && role.get() === "approver") return false;
  return tab !== "changes" || ask("INSPECT", { name: row.name })?.spec?.workspace_mode === "overlay";
}

/** @param {string} name @param {boolean} whole */
function closer(name, whole) {
  return whole
    ? html`<button class="quiet" @click=${() => history.back()}>back</button>`
    : html`<a class="button quiet" href=${link("agent", { agent: name, tab: route.get().params.tab })} title="o">open</a><button class="quiet" title="Esc" @click=${() => adjust({ agent: null, tab: null })}>close</button>`;
}

/** @param {string} tab @param {Row} row */
function content(tab, row) {
  const inspected = () => ask("INSPECT", { name: row.name }, 5);
  switch (tab) {
    case "trace":
      return traceOf(row.name);
    case "logs":
      return html`<os-log .view=${{ name: row.name }} .style=${"display:flex;flex-direction:column;height:calc(100% - 28px)"}></os-log><p class="after"><a class="text" href=${link("logs", { of: row.name })}>with other agents and earlier runs</a></p>`;
    case "recordings":
      return recordingsOf(row.name);
    case "changes":
      return changesTab(row.name);
    case "limits":
      return shown(inspected(), (reply) => limits(row, reply));
    case "rights":
      return rights(row);
    case "state":
      return shown(ask("KEYS", { agent: row.name, scope: "agent" }, 5), (reply) => keys(row.name, reply));
    case "exec":
      return execTab(row.name);
    case "send":
      return sendForm(row.name);
    case "calls":
      return calls({ agent_id: row.id, limit: 100 });
    default:
      return shown(inspected(), (reply) => present(row, reply));
  }
}

/** @param {Row} row @param {Row} reply */
function present(row, reply) {
  const layers = Object.values(reply.isolation?.layers ?? {});
  const active = layers.filter((layer) => layer.active).length;
  return html`
    ${row.end || row.stopped_by ? html`<section><h3>Why it ended last</h3><p>${reason(row)}${quote(row)}</p></section>` : null}
    <section>${facts([
      ["memory", row.running && html`<span>${bar(row.memory_bytes, reply.limits?.memory)} ${bytes(row.memory_bytes)}${most(reply.limits?.memory, bytes)}</span>`],
      ["cpu", row.running && html`<span>${bar(cores(row), (reply.limits?.cpu_quota ?? 0) / 100000)} ${number(cores(row), 2)} cores${most(reply.limits?.cpu_quota, (quota) => number(quota / 100000, 1))}</span>`],
      ["processes", row.running && `${number(reply.usage?.pids)}${most(reply.limits?.max_pids, number)}`],
      ["pid", reply.pid],
      ["restarts", number(row.restarts)],
      ["started by", row.wakes_on && visible(row.wakes_on)],
      ["next start", row.next_at && exactTime(row.next_at)],
      ["supervisor", html`<a class="text" href=${link("tree", { agent: row.name })}>${visible(row.supervisor)}</a>`],
      ["network", reply.spec?.network],
      ["isolation", html`<span class=${active === layers.length ? "" : "warn"}>${active} of ${layers.length} active</span>`],
      ["command", html`<code>${visible((reply.spec?.command ?? [reply.spec?.script, ...(reply.spec?.args ?? [])]).filter(Boolean).join(" "))}</code>`],
    ])}</section>
    ${charts(row.id)}
    ${model(reply.llm)}`;
}

/** What a limit allows, in words. @param {number|null|undefined} limit @param {(value: number) => string} format */
function most(limit, format) {
  return limit ? ` of ${format(limit)}` : ", no limit";
}

/** @param {Row|undefined} llm */
function model(llm) {
  if (!llm) return null;
  return html`<section><h3>Model</h3>${facts([
    ["questions", number(llm.spent?.calls)],
    ["tokens", number((llm.spent?.input ?? 0) + (llm.spent?.output ?? 0) + (llm.spent?.thinking ?? 0))],
    ["waiting", llm.place?.waiting ? `${llm.place.waiting}, at place ${llm.place.position}` : "0"],
    ...(llm.budgets ?? []).map((/** @type {Row} */ budget) => [`budget, ${budget.what}`, html`<span>${bar(budget.used, budget.most)} ${number(budget.used)} of ${number(budget.most)} per ${duration(budget.per * 1000)}</span>`]),
  ])}</section>`;
}

/** @param {string} name @param {number} value */
function limit(name, value) {
  if (name === "cpu_quota") return `${number(value / 100000, 2)} cores`;
  return ["memory", "disk", "tmp", "file_size"].includes(name) ? bytes(value) : number(value);
}

/** @param {Row} row @param {Row} reply */
function limits(row, reply) {
  const bad = Object.entries(reply.isolation?.layers ?? {}).filter(([, layer]) => !layer.active);
  return html`${charts(row.id)}
    <section><h3>Limits</h3>${facts(Object.entries(reply.limits ?? {}).map(([name, value]) => [name, limit(name, value)]))}</section>
    <section><h3>Isolation</h3>
      ${bad.map(([name, layer]) => html`<p class="warn">${name}: ${visible(layer.reason)}</p>`)}
      ${facts(Object.entries(reply.isolation?.layers ?? {}).filter(([, layer]) => layer.active).map(([name, layer]) => [name, html`<span class="muted">${visible(layer.mechanism)}</span>`]))}
    </section>`;
}

/** Its private state; a key opens its value. @param {string} name @param {Row} reply */
function keys(name, reply) {
  if (!reply.keys.length) return html`<p class="muted">It has stored no key of its own.</p>`;
  return html`<ul class="keys-list">${reply.keys.map((/** @type {string} */ key) => keyed(key, html`<li><details @toggle=${(/** @type {any} */ event) => unfold(key, event.target.open)}><summary class="cut">${visible(key)}</summary>${unfolded.get().has(key) ? value(name, key) : null}</details></li>`))}</ul>
    ${reply.next ? html`<p class="muted">the first ${reply.count} keys</p>` : null}`;
}

/** @param {string} name @param {string} key */
function value(name, key) {
  return shown(ask("FETCH", { agent: name, scope: "agent", key }, 2), (reply) =>
    reply.exists ? html`<p class="muted">version ${number(reply.version)}${reply.expires_in === null ? "" : `, expires in ${duration(reply.expires_in * 1000)}`}</p>${json(reply.value)}` : html`<p class="muted">deleted</p>`);
}

/** @param {string} key @param {boolean} open */
function unfold(key, open) {
  const next = new Set(unfolded.peek());
  if (open) next.add(key);
  else next.delete(key);
  unfolded.set(next);
}
