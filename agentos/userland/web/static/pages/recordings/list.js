// Recordings: the lives that were recorded, of all agents or of one; a link opens one of them.

import { RECORDINGS, ask, forget } from "../../core/ask.js";
import { role, seesContents } from "../../core/feed.js";
import { html, keyed } from "../../core/html.js";
import { adjust, link, route } from "../../core/route.js";
import { bytes, duration, exactTime, plural, visible } from "../../parts/text/format.js";
import { shown } from "../../parts/reply.js";
import { recordingPage } from "./one.js";

/** @typedef {Record<string, any>} Row */

export function recordingsPage() {
  const { params } = route.get();
  if (params.rec) return recordingPage(params.rec, params.life ?? null);
  return html`<div class="toolbar"><label class="grow"><span class="hidden-text">search</span><input id="filter" placeholder="search in recording, agent and end" .value=${params.filter ?? ""}
      @input=${(/** @type {any} */ event) => adjust({ filter: event.target.value || null }, true)}></label>
      <button @click=${() => forget(RECORDINGS)}>refresh</button></div>
    ${shown(ask(RECORDINGS, {}, 10), (reply) => table(reply, matching(reply.lives, params.filter ?? ""), params.filter ? "No recording has that." : null))}`;
}

/** The tab of an agent. @param {string} name */
export function recordingsOf(name) {
  return shown(ask(RECORDINGS, {}, 10), (reply) => table(reply, reply.lives.filter((/** @type {Row} */ one) => one.agent === name), null));
}

/** @param {Row[]} lives @param {string} filter */
function matching(lives, filter) {
  const wanted = filter.toLowerCase();
  return lives.filter((one) => [one.recording, one.life, one.agent, one.end].join(" ").toLowerCase().includes(wanted));
}

/** @param {Row} reply @param {Row[]} lives @param {string|null} none */
function table(reply, lives, none) {
  if (!lives.length) return html`<p class="block empty">${none ?? html`No recording yet. <code>record = true</code> of an agent keeps its lives, <code>agentos run --record NAME</code> those of one run.`}</p>`;
  const word = (/** @type {Row} */ one) => `${visible(one.recording)}${one.life ? `, ${visible(one.life)}` : ""}`;
  return html`<div class="wide"><table class="list-table recordings"><thead><tr><th scope="col">recording</th><th scope="col" class="spare">agent</th><th scope="col">began</th><th scope="col">outcome</th><th scope="col" class="number spare">size</th><th scope="col">replay</th></tr></thead>
    <tbody>${lives.map((one) => keyed(`${one.recording} ${one.life}`, html`<tr>
      <td>${seesContents() && one.life ? html`<a class="text" href=${link("recordings", { rec: one.recording, life: one.life })}>${word(one)}</a>` : word(one)}${one.resumed ? html`<span class="quote">goes on with ${visible(one.resumed)}</span>` : null}${one.forked ? html`<span class="quote">fork of ${visible(one.forked)}</span>` : null}</td>
      <td class="spare">${visible(one.agent)}</td>
      <td>${exactTime(one.began)}${one.ended === null ? null : html`<span class="quote">${duration((one.ended - one.began) * 1000)}</span>`}</td>
      <td><span class=${one.failed ? "bad" : ""}>${visible(one.end)}</span></td>
      <td class="number spare">${bytes(one.size)}</td>
      <td>${one.replayable ? "possible" : html`<span class="warn">no: ${visible(one.why)}</span>`}</td></tr>`))}</tbody></table></div>
    ${reply.more ? html`<p class="muted">the last ${plural(reply.lives.length, "life").replace("lifes", "lives")}; <code>agentos recordings ls</code> lists all</p>` : null}
    ${role.get() === "viewer" ? html`<p class="muted after">What was asked and answered isn't shown with this link: <code>agentos dashboard --with-contents</code> prints one that shows it.</p>` : null}`;
}
