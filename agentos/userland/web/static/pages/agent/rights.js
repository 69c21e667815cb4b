// What one agent may do: its rules as a list, the rule that would decide about one call, the set as TOML.

import { ask, forget } from "../../core/ask.js";
import { call } from "../../core/feed.js";
import { html } from "../../core/html.js";
import { signal } from "../../core/signals.js";
import { toast, whyDisabled } from "../../parts/actions.js";
import { copied } from "../../parts/text/copied.js";
import { duration, exactTime, number, visible } from "../../parts/text/format.js";
import { refused, shown } from "../../parts/reply.js";
import { DECISIONS, changeButton, draftOf, rightsForm } from "./rightsform.js";

/** @typedef {Record<string, any>} Row */

const ABOUT = /** @type {Record<string, string>} */ ({ READ: "path", WRITE: "path", EXEC: "command", HTTP: "url", SPAWN: "name", SEND: "to", THINK: "prompt" });
const explained = signal(/** @type {{name: string, reply: Row}|null} */ (null));

/** @param {Row} row an agent */
export function rights(row) {
  const answer = explained.get();
  const changed = draftOf(row.name);
  return html`<section><h3>Explain</h3>
      <form class="toolbar" @submit=${(/** @type {Event} */ event) => explain(event, row.name)}>
        <select name="call" aria-label="call">${Object.keys(ABOUT).map((one, index) => html`<option value=${one} .selected=${index === 0}>${one}</option>`)}</select>
        <input name="about" class="wide-input" aria-label="about" placeholder="path, command or URL">
        <button title=${`agentos permissions explain ${row.name} …`}>explain</button>
      </form>
      ${answer && answer.name === row.name ? verdict(answer.reply) : null}
    </section>
    ${shown(ask("GET_PERMS", { agent_id: row.id }, 10), (reply) => html`
      ${changed ? rightsForm() : html`<section><div class="heading"><h3>Rules of its own</h3>${changeButton(row, reply.permissions)}</div>${rules(reply.permissions)}</section>`}
      ${(reply.permissions.bounded_by ?? []).map((/** @type {Row} */ one) => html`<section><h3>Bounded by ${visible(one.name)}</h3>${rules(one)}</section>`)}
      ${answers(reply.answers ?? [])}
      <section><h3>As TOML</h3><p class="muted prose">${changed ? "The set with these changes:" : "What is changed here, or by agentos permissions set, holds until the agent ends. To keep it, copy this into the configuration:"}</p>
        ${copied(toml(row.name, changed ?? reply.permissions))}</section>`)}`;
}

/** @param {Row} set */
export function rules(set) {
  const lines = DECISIONS.flatMap(([decision, colour]) => Object.entries(set[decision] ?? {}).map(([right, patterns]) => ({ decision, colour, right, patterns })));
  return html`${set.level ? html`<p>level <code>${set.level}</code> <span class="muted">its rules: <code>agentos permissions show ${set.level}</code></span></p>` : null}
    ${lines.length ? html`<table class="list-table"><tbody>${lines.map(({ decision, colour, right, patterns }) => html`<tr><td class=${colour}>${decision}</td><td class="muted">${right}</td><td class="patterns">${listed(patterns).map((one) => html`<code>${visible(one)}</code> `)}</td></tr>`)}</tbody></table>` : null}
    ${(set.quotas ?? []).map((/** @type {Row} */ quota) => html`<p>at most ${Object.entries(quota).filter(([name]) => name !== "per").map(([name, most]) => `${typeof most === "number" ? number(most) : visible(most)} ${name}`).join(", ")} per ${typeof quota.per === "number" ? duration(quota.per * 1000) : visible(quota.per)}</p>`)}
    ${set.spawn ? html`<p><span class="muted">what it spawns:</span> <code>${visible(JSON.stringify(set.spawn))}</code></p>` : null}
    ${!set.level && !lines.length ? html`<p class="muted">No rule of its own.</p>` : null}`;
}

/** @param {any} patterns @returns {string[]} */
function listed(patterns) {
  return (Array.isArray(patterns) ? patterns : [patterns]).map((one) => (typeof one === "string" ? one : JSON.stringify(one)));
}

/** Answers of persons that are remembered. @param {Row[]} list */
function answers(list) {
  if (!list.length) return null;
  const why = whyDisabled();
  return html`<section><h3>Remembered answers</h3><ul>${list.map((one) => html`<li><span class=${one.allow ? "ok" : "bad"}>${one.allow ? "allow" : "deny"}</span> ${one.call} <code>${visible(one.object)}</code> <span class="muted">by ${visible(one.by)}, ${exactTime(one.at)}</span> <button disabled=${Boolean(why)} title=${why || `agentos permissions forget ${one.id}`} @click=${() => forgetAnswer(one.id)}>forget</button></li>`)}</ul></section>`;
}

/** @param {number} id of a remembered answer */
async function forgetAnswer(id) {
  const reply = await call("DECIDE", { id, allow: false, forget: true });
  if (reply?.success === false) toast(visible(reply.error), true);
  forget("GET_PERMS");
}

/** The set as the configuration file has it: arrays and texts of TOML are those of JSON. @param {string} name @param {Row} set */
function toml(name, set) {
  const { bounded_by: _, ...rest } = set;
  const isTable = (/** @type {unknown} */ value) => typeof value === "object" && value !== null && !Array.isArray(value);
  const lines = [`[permissions.${name.includes(".") ? JSON.stringify(name) : name}]`, ...Object.entries(rest).filter(([, value]) => value !== undefined && !isTable(value)).map(([key, value]) => `${key} = ${inline(value)}`)];
  for (const [key, value] of Object.entries(rest)) if (isTable(value)) lines.push(`${key} = ${inline(value)}`);
  return lines.join("\n");
}

/** @param {any} value @returns {string} */
function inline(value) {
  if (Array.isArray(value)) return `[${value.map(inline).join(", ")}]`;
  if (typeof value === "object" && value !== null) return `{ ${Object.entries(value).map(([key, one]) => `${/^[A-Za-z0-9_-]+$/.test(key) ? key : JSON.stringify(key)} = ${inline(one)}`).join(", ")} }`;
  return JSON.stringify(value);
}

/** @param {Row} reply */
function verdict(reply) {
  if (reply.success === false) return refused(reply);
  const colour = DECISIONS.find(([decision]) => decision === reply.decision)?.[1] ?? "bad";
  return html`<p role="status"><span class=${colour}>${reply.decision}</span> ${visible(reply.reason)}<br><span class="muted">${visible(reply.rule)}</span></p>`;
}

/** @param {Event} event @param {string} name */
async function explain(event, name) {
  event.preventDefault();
  const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
  const [op, about] = [String(form.get("call")), String(form.get("about"))];
  const args = { [ABOUT[op]]: about, ...(op === "WRITE" ? { content: "" } : {}), ...(op === "SEND" ? { message: {} } : {}), ...(op === "SPAWN" ? { command: ["true"] } : {}) };
  explained.set({ name, reply: await call("EXPLAIN", { agent: name, call: op, args }) });
}
