// System: the kernel, its isolation, the configuration with what a reload would change, the browsers that are logged in.

import { signal } from "../core/signals.js";
import { call, connected, kernel, sessions } from "../core/feed.js";
import { html } from "../core/html.js";
import { toast, whyDisabled } from "../parts/actions.js";
import { elapsed, exactTime, number, visible } from "../parts/format.js";
import { facts, refused } from "../parts/reply.js";

/** @typedef {Record<string, any>} Row */

const known = signal(/** @type {Row|null} */ (null));
const preview = signal(/** @type {Row|null} */ (null));
let loading = false;

export function systemPage() {
  const now = kernel.get();
  if (!now) return null;
  if (known.get() === null && connected.get() && !loading) loadSessions();
  const why = whyDisabled();
  return html`
    <section><h2 class="label">Kernel</h2>${facts([
      ["version", now.kernel_version], ["up", elapsed(now.since_ms)], ["isolation", visible(now.isolation)],
      ["audit", html`<span class=${now.audit?.problem ? "bad" : ""}>${now.audit?.problem ? visible(now.audit.problem) : "sound"}</span>`],
      ["audit entries", `${number(now.audit?.entries)}, ${number(now.audit?.lost)} lost`],
      ["doctor", html`<code>agentos doctor</code>`],
    ])}</section>
    <section><h2 class="label">Configuration</h2>
      <p class="cut">${now.config ? visible(now.config) : html`<span class="muted">none: this kernel was started without a file</span>`}</p>
      <div class="toolbar after"><button disabled=${Boolean(why) || !now.config} title=${why || "agentos reload --dry-run"} @click=${() => reload(true)}>show what a reload changes</button></div>
      ${preview.get() ? changes(/** @type {Row} */ (preview.get()), why) : null}
    </section>
    <section><h2 class="label">Browsers that are logged in</h2>${sessionTable(why)}
      <p class="muted prose after">A session ends 12 hours after its last use. Another browser: <code>agentos dashboard</code>, or <code>agentos dashboard --read-only</code>.</p>
      <div class="toolbar after"><button @click=${logOut}>log out</button></div></section>`;
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
  return html`<table class="list-table block"><thead><tr><th>session</th><th>rights</th><th>since</th><th class="spare">browser</th><th><span class="hidden-text">end it</span></th></tr></thead><tbody>${reply.sessions.map((/** @type {Row} */ one) => html`<tr>
    <td>web:${one.id}${one.id === reply.own ? " (this one)" : ""}</td><td class="word">${one.level === "readonly" ? "read-only" : "operator"}</td><td>${exactTime(one.started)}</td><td class="muted spare">${visible(one.browser)}</td>
    <td class="number"><button disabled=${Boolean(why) || one.id === reply.own} title=${why} @click=${() => loadSessions(one.id)}>revoke</button></td></tr>`)}</tbody></table>`;
}

/** @param {Row} reply @param {string} why */
function changes(reply, why) {
  if (reply.success === false) return refused(reply);
  const lines = [...(reply.changes ?? []), ...(reply.settings ?? []), ...(reply.kernel_restart ?? []).map((/** @type {any} */ key) => `${key}: only when the kernel is started anew`)];
  return html`<div class="confirm">${lines.length ? html`<ul>${lines.map((one) => html`<li>${visible(typeof one === "string" ? one : Object.values(one).flat().join(" "))}</li>`)}</ul>` : html`<p>Nothing differs from what runs.</p>`}
    <div class="acts">${lines.length ? html`<button class="primary" disabled=${Boolean(why)} title="agentos reload" @click=${() => reload(false)}>reload</button>` : null}<button @click=${() => preview.set(null)}>close</button></div></div>`;
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
  await fetch("/logout", { method: "POST" });
  location.reload();
}
