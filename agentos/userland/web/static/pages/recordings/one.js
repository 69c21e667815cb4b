// One recorded life: its calls as a waterfall, as of an agent that runs; a call opens what was asked and answered.

import { RECORDINGS, ask } from "../../core/ask.js";
import { role } from "../../core/feed.js";
import { html } from "../../core/html.js";
import { adjust, link } from "../../core/route.js";
import { duration, exactTime, number, visible, visibleLines } from "../../parts/text/format.js";
import { facts, shown } from "../../parts/reply.js";
import { details, waterfall } from "../trace.js";
import { againPart } from "./again.js";
import { branchesOf, forkPart } from "./fork.js";
import { differencesOf, nowColumn, replayPart } from "./replay.js";

/** @typedef {Record<string, any>} Row */

/** @param {string} name of the recording @param {string|null} life */
export function recordingPage(name, life) {
  return html`<p><a class="text" href=${link("recordings")}>all recordings</a></p><h2>${visible(name)}</h2>
    ${shown(ask(RECORDINGS, { name, ...(life ? { life } : {}) }), (reply) => lifeOf(reply))}`;
}

/** @param {Row} reply */
function lifeOf(reply) {
  const name = reply.recording;
  const others = reply.lives.length > 1 ? html`<select aria-label="life" @change=${(/** @type {any} */ event) => adjust({ life: event.target.value })}>${reply.lives.map((/** @type {string} */ one) => html`<option value=${one} .selected=${one === reply.life}>${visible(one)}</option>`)}</select>` : visible(reply.life);
  return html`<section>${facts([
      ["life", others],
      ["agent", html`<a class="text" href=${link("agents", { agent: reply.agent })}>${visible(reply.agent)}</a>`],
      ["began", `${exactTime(reply.began)}${reply.ended === null ? "" : `, took ${duration((reply.ended - reply.began) * 1000)}`}`],
      ["outcome", html`<span class=${reply.failed ? "bad" : ""}>${visible(reply.end)}</span>`],
      ["goes on with", reply.resumed && visible(reply.resumed)],
      ["fork of", reply.forked && forkedFrom(reply.forked)],
      ["replay", reply.replayable ? `possible${reply.no_files ? `, without its files: ${visible(reply.no_files)}` : ""}` : html`<span class="warn">no: ${visible(reply.why)}</span>`],
      ["calls", `${number(reply.count)}${reply.count > reply.entries.length ? `; the last ${reply.entries.length} are shown, \`agentos recordings show ${visible(name)}\` has all` : ""}`],
    ])}</section>
    ${branchesOf(name)}${role.get() === "operator" ? replayPart(reply) : null}
    ${reply.entries.length ? waterfall(reply.entries, `${name} ${reply.life}`, (entry) => recordedCall(reply, entry), nowColumn(reply)) : html`<p class="empty">No call was recorded.</p>`}`;
}

/** @param {string} origin RECORDING@NUMBER */
function forkedFrom(origin) {
  const [, name, number] = /^(.*)@([0-9]+)$/.exec(origin) ?? ["", origin, ""];
  return html`<a class="text" href=${link("recordings", { rec: name })}>${visible(name)}</a>, live from call ${visible(number)}`;
}

/** What a call asked, and was answered; before that what differs now. @param {Row} life @param {Row} entry */
function recordedCall(life, entry) {
  return html`${differencesOf(life, entry)}${details(entry)}${shown(ask(RECORDINGS, { name: life.recording, call: entry.id }), (reply) => (entry.call === "THINK" ? html`${question(reply.contents)}${role.get() === "operator" ? html`${againPart(life, entry, reply.contents)}${forkPart(life, entry, reply.contents)}` : null}` : plain(reply.contents)))}`;
}

/** @param {Row} found */
function question(found) {
  return html`${found.system ? html`<h3>system</h3><pre>${visibleLines(found.system)}</pre>` : null}
    ${found.left_out ? html`<p class="muted">${number(found.left_out)} earlier messages aren't shown here.</p>` : null}
    ${found.messages.map((/** @type {Row} */ message) => html`<h3>${visible(message.role)}</h3><pre>${visibleLines(message.text)}</pre>${message.images ? html`<p class="muted">with ${number(message.images)} images</p>` : null}`)}
    <h3>answer</h3><pre>${visibleLines(found.answer || found.error || "")}</pre>${found.tool_calls ? html`<h3>calls of tools</h3><pre>${visibleLines(found.tool_calls)}</pre>` : null}`;
}

/** @param {Row} found */
function plain(found) {
  return html`<h3>request</h3><pre>${visibleLines(found.request)}</pre><h3>reply</h3><pre>${visibleLines(found.reply || "none was given")}</pre>`;
}
