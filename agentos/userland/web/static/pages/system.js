// System: the kernel, its isolation, the configuration with what a reload would change, the browsers that are logged in.

import { ask, forget } from "../core/ask.js";
import { signal } from "../core/signals.js";
import { call, connected, kernel, role, sessions } from "../core/feed.js";
import { html } from "../core/html.js";
import { toast, whyDisabled } from "../parts/actions.js";
import { elapsed, exactTime, number, plural, visible, visibleLines } from "../parts/text/format.js";
import { hostCheck } from "../parts/hostcheck.js";
import { facts, refused } from "../parts/reply.js";

/** @typedef {Record<string, any>} Row */

const known = signal(/** @type {Row|null} */ (null));
const preview = signal(/** @type {Row|null} */ (null));
const fileShown = signal(false);
let loading = false;

export function systemPage() {
  const now = kernel.get();
  if (!now) return null;
  if (known.get() === null && connected.get() && !loading) loadSessions();
  const why = whyDisabled();
  return html`${state(now)}${role.get() === "operator" ? host(now, why) : null}
    <section><h2 class="label">Browsers that are logged in</h2>${sessionTable(why)}
      <p class="muted prose after">A session ends at its time, or 12 hours after a person used it last. Another browser: <code>agentos dashboard</code>, with <code>--viewer</code> or <code>--approver</code> for a colleague's.</p>
      <div class="toolbar after"><button @click=${logOut}>log out</button></div></section>`;
}

/** @param {Row} now */
function state(now) {
  return html`<section><h2 class="label">Kernel</h2>${facts([
      ["version", now.kernel_version], ["up", elapsed(now.since_ms)], ["isolation", visible(now.isolation)],
      ["audit", html`<span class=${now.audit?.problem ? "bad" : ""}>${now.audit?.problem ? visible(now.audit.problem) : "sound"}</span>`],
      ["audit entries", `${number(now.audit?.entries)}, ${number(now.audit?.lost)} lost`],
    ])}</section>`;
}

/** The kernel's host and its configuration, for the operator. @param {Row} now @param {string} why */
function host(now, why) {
  return html`
    <section><h2 class="label">Doctor</h2>${hostCheck("doctor", "examine this host", "agentos doctor", examined)}</section>
    <section><h2 class="label">Audit log</h2>${hostCheck("verify", "verify all of it", "agentos audit verify", verified)}</section>
    <section><h2 class="label">Configuration</h2>
      <p class="cut">${now.config ? visible(now.config) : html`<span class="muted">none: this kernel was started without a file</span>`}</p>
      <div class="toolbar after"><button disabled=${Boolean(why) || !now.config} title=${why || "agentos reload --dry-run"} @click=${() => reload(true)}>show what a reload changes</button></div>
      ${preview.get() ? changes(/** @type {Row} */ (preview.get()), why) : null}
      ${now.config && !why ? html`<details @toggle=${(/** @type {any} */ event) => { if (event.target.open) forget("READ"); fileShown.set(event.target.open); }}><summary>the file as it is now</summary>${fileShown.get() ? fileText(now.config) : null}</details>` : null}
    </section>`;
}

async function loadSessions(/** @type {string} */ revoke = "") {
  loading = true;
  const reply = await sessions(revoke || undefined);
  loading = false;
  if (reply?.success === false) toast(visible(reply.error), true);
  else known.set(reply);
}

/** @param {string} why */
function sessionTable(why) {
  const reply = known.get();
  if (!reply) return null;
  return html`<table class="list-table block"><thead><tr><th>link</th><th>rights</th><th>ends</th><th class="spare">since</th><th class="spare">browser</th><th><span class="hidden-text">end it</span></th></tr></thead><tbody>${reply.sessions.map((/** @type {Row} */ one) => html`<tr>
    <td>${one.id}${one.id === reply.own ? " (this one)" : ""}</td><td class="word">${one.role.replaceAll("-", " ")}</td><td>${one.until === null ? "12 h without use" : exactTime(one.until)}</td><td class="word spare">${one.started === null ? "" : exactTime(one.started)}</td><td class="muted spare" title=${one.browser}>${one.browser === null ? "not used yet" : browserName(one.browser)}</td>
    <td class="number"><button disabled=${Boolean(why) || one.id === reply.own} title=${why || `agentos dashboard --revoke ${one.id}`} @click=${() => loadSessions(one.id)}>revoke</button></td></tr>`)}</tbody></table>`;
}

/** `Chrome 156, Linux` of what a browser says about itself. @param {string} text */
function browserName(text) {
  const [, name, version] = /(Firefox|Edg|OPR|Chrome|Version)\/([0-9]+)/.exec(text.replace("Headless", "")) ?? [];
  const system = /Windows|Android|iPhone|iPad|Mac OS|Linux/.exec(text)?.[0];
  if (!name) return visible(text.slice(0, 60));
  return `${{ Version: "Safari", Edg: "Edge", OPR: "Opera" }[name] ?? name} ${version}${system ? `, ${system}` : ""}`;
}

/** @param {Row} reply of RELOAD @param {string} why */
function changes(reply, why) {
  if (reply.success === false) return html`<pre class="bad" role="alert">${visibleLines(reply.error)}</pre>`;
  const lines = [
    ...reply.changes.map((/** @type {Row} */ one) => [SIGNS[one.change] ?? "~", `${one.agent} ${one.change}${one.fields?.length ? `: ${one.fields.join(", ")}` : ""}`]),
    ...reply.settings.map((/** @type {string} */ one) => ["~", `${one} holds from now on`]),
    ...reply.kernel_restart.map((/** @type {string} */ one) => ["!", `${one} holds only when the kernel is started anew`]),
  ];
  return html`<div class="confirm" role="group" aria-label="what a reload changes">${lines.length ? html`<pre class="diff">${lines.map(([sign, text]) => html`<span class=${TINTS[sign] ?? ""}>${`${sign} ${visible(text)}\n`}</span>`)}</pre>` : html`<p>Nothing differs from what runs.</p>`}
    <div class="acts">${lines.length ? html`<button class="primary" disabled=${Boolean(why)} title="agentos reload" @click=${() => reload(false)}>reload</button>` : null}<button @click=${() => preview.set(null)}>close</button></div></div>`;
}

/** @type {Record<string, string>} */
const SIGNS = { added: "+", removed: "-" };
/** @type {Record<string, string>} */
const TINTS = { "+": "add", "-": "del", "!": "warn" };

/** @param {string} path */
function fileText(path) {
  const reply = ask("READ", { path });
  return reply === null ? null : reply.success === false ? refused(reply) : html`<pre class="copied" tabindex="0">${visibleLines(reply.content)}</pre>`;
}

/** What the doctor found. @param {Row} found */
function examined(found) {
  const layers = Object.entries(found.layers ?? {});
  const works = layers.filter(([, one]) => one.works);
  const bad = layers.filter(([, one]) => !one.works);
  return html`<p class=${found.level === "none" ? "bad" : bad.length ? "warn" : "ok"}>${visible(found.verdict)}</p>
    ${bad.length ? html`<table class="list-table block after"><tbody>${bad.map(([name, one]) => html`<tr><td class="warn word">${name}</td><td>${visible(one.reason)}</td><td class="muted">${visible(one.knob)}</td></tr>`)}</tbody></table>` : null}
    <details class="after"><summary>${plural(works.length, "layer")} ${works.length === 1 ? "works" : "work"}</summary>${facts(works.map(([name, one]) => [name, visible(one.mechanism)]))}</details>
    <details><summary>facts about the host</summary>${facts(Object.entries(found.facts ?? {}).map(([name, value]) => [name, visible(value)]))}</details>`;
}

/** What came of reading all of the audit log. @param {Row} found */
function verified(found) {
  return html`<p class=${found.sound ? "ok" : "bad"}>${found.sound ? `sound: ${plural(found.entries, "entry").replace("entrys", "entries")} in ${plural(found.segments, "segment")}` : "not as it was written"}</p>
    ${(found.faults ?? []).map((/** @type {Row} */ fault) => html`<p class="bad">entry ${fault.entry}: ${visible(fault.error)}</p>`)}
    <p class="muted">head ${number(found.last)} <code class="hash">${visible(found.head)}</code></p>
    <p class="muted prose">Keep this hash somewhere else: <code>agentos audit verify --head HASH</code> then finds a log that was rewritten.</p>`;
}

async function reload(/** @type {boolean} */ dry) {
  const reply = await call("RELOAD", dry ? { dry_run: true } : {});
  if (dry || reply?.success === false) preview.set(reply);
  else {
    preview.set(null);
    toast("reloaded");
  }
}

async function logOut() {
  await sessions((await sessions()).own);
}
