// What an agent has changed in its overlay, per file: applied, undone, thrown away. What is shown is one reply of DIFF, and only
// its digest is sent to APPLY: so nothing is applied that differs from what was looked at. It is never read again by itself.

import { boot, call } from "../../core/feed.js";
import { ask, forget } from "../../core/ask.js";
import { html, keyed } from "../../core/html.js";
import { adjust, route } from "../../core/route.js";
import { signal } from "../../core/signals.js";
import { asked, confirmation, toast, whyDisabled } from "../../parts/actions.js";
import { countApplied, differences, firstOpen, grouped, linesOf } from "../../parts/changes.js";
import { refused, shown } from "../../parts/reply.js";
import { signed } from "../../parts/text/diff.js";
import { bytes, exactTime, plural, visible } from "../../parts/text/format.js";

/** @typedef {Record<string, any>} Row */
/** `of`: of which agent, paths and run of the kernel. `stale`: what differs from the diff that was to be applied. `report`: of the last call.
 * @typedef {{of: string, name: string, paths: string[], reply: Row|null, also: Set<string>, resolve: Map<string, string>, open: Set<string>, whole: Set<string>, stale: [string, string][]|null, report: unknown}} View */

const MAX_LINES = 1000; // of one file, before it is shown whole
const MAX_LISTED = 500; // changes of a group, and paths of a report
const TINTS = /** @type {Record<string, string>} */ ({ created: "ok", changed: "info", deleted: "bad", type: "warn" });
const changed = signal(0);
/** @type {View|null} */
let view = null;

/** @param {string} name of an agent with an overlay */
export function changesTab(name) {
  changed.get();
  const at = route.get().params.at ?? "";
  const of = JSON.stringify([name, at, boot.get()]);
  if (view?.of !== of) {
    view = { of, name, paths: at ? [at] : [], reply: null, also: new Set(), resolve: new Map(), open: new Set(), whole: new Set(), stale: null, report: null };
    look(view);
  }
  const now = view;
  const why = whyDisabled();
  return html`<form class="toolbar" @submit=${(/** @type {any} */ event) => { event.preventDefault(); adjust({ at: event.target.elements.at.value.trim() || null }); look(now); }}>
      <input name="at" class="wide-input" aria-label="path" placeholder="all paths, or one and what is below it" autocomplete="off" spellcheck="false" .value=${at}>
      <button title=${`agentos diff ${name}`}>look again</button></form>
    <div role="status">${now.report}</div>${now.stale ? staleNote(now.stale) : null}
    ${now.reply ? shown(/** @type {any} */ (now.reply), (reply) => diffOf(now, reply, why)) : html`<p class="muted" aria-busy="true">reading the changes…</p>`}
    ${moments(now, why)}`;
}

/** Read the changes, with texts where the reply isn't too large for a page. @param {View} now */
async function look(now) {
  if (asked.peek()?.place.endsWith(now.of)) asked.set(null); // it was about what was shown before
  const args = { name: now.name, ...(now.paths.length ? { paths: now.paths } : {}) };
  let reply = await call("DIFF", { ...args, content: true });
  if (reply.code === "too_large") reply = await call("DIFF", args);
  now.reply = reply;
  now.open = firstOpen(reply.changes ?? []);
  now.whole = new Set();
  changed.set(changed.peek() + 1);
}

/** @param {[string, string][]} stale */
function staleNote(stale) {
  return html`<div class="confirm" role="alert"><p>Nothing was applied: the agent or the host has changed something since this was shown. Below is what is there now.</p>
    <ul>${stale.slice(0, MAX_LISTED).map(([path, what]) => html`<li><code>${visible(path)}</code> ${what}</li>`)}${stale.length ? null : html`<li>contents that aren't shown as text</li>`}</ul></div>`;
}

/** @param {View} now @param {Row} reply @param {string} why nothing can be done now */
function diffOf(now, reply, why) {
  const { plain, conflicts, obeyed, blocked } = grouped(reply);
  const count = countApplied(reply, now.also, now.resolve);
  const dropped = conflicts.filter((one) => now.resolve.get(one.path) === "theirs").length;
  if (!reply.changes.length) return html`<p class="muted">No changes${now.paths.length ? " there" : ""}. <button disabled=${Boolean(why)} title=${why || `agentos undo ${now.name}`} @click=${() => undo(now)}>undo the last apply…</button></p>${confirmation(`apply ${now.of}`)}`;
  return html`<div class="line acts"><button class="primary" disabled=${Boolean(why) || !(count + dropped)} title=${why || `agentos apply ${[now.name, ...now.paths].join(" ")} --digest ${reply.digest.slice(0, 12)}`} @click=${() => apply(now, reply, count, dropped)}>apply ${plural(count, "change")}…</button>
      <button disabled=${Boolean(why)} title=${why || `agentos undo ${now.name}`} @click=${() => undo(now)}>undo the last apply…</button></div>
    ${confirmation(`apply ${now.of}`)}
    ${reply.more ? html`<p class="warn">${plural(reply.more, "more change")} than a reply has room for: they are applied, too. Give a path to see them.</p>` : null}
    ${list(now, plain)}
    ${conflicts.length ? html`<section><h3>The host has changed these, too</h3>${list(now, conflicts, (one) => ways(now, one))}</section>` : null}
    ${obeyed.map((group) => keyed(group.root, html`<section><h3>Obeyed by programs outside of the jail</h3><p><code>${visible(group.root)}</code>: ${visible(group.why)}</p>
      ${group.commits.map((one) => html`<p>${plural(one.commits, "commit")} on ${visible(one.branch)}${one.dropped ? html`, <span class="warn">and it loses ${plural(one.dropped, "commit")} of yours</span>` : null}</p>`)}
      <label class="line-label"><input type="checkbox" .checked=${now.also.has(group.root)} @change=${() => { if (!now.also.delete(group.root)) now.also.add(group.root); changed.set(changed.peek() + 1); }}> apply ${visible(group.root)}, too</label>
      ${list(now, group.changes.filter((one) => !one.conflict))}</section>`))}
    ${blocked.length ? html`<section><h3>Never applied</h3>${list(now, blocked, (one) => html`<p class="warn">${visible(one.blocked)}</p>`)}</section>` : null}`;
}

/** @param {View} now @param {Row[]} changes @param {(change: Row) => unknown} [more] */
function list(now, changes, more) {
  if (!changes.length) return null;
  return html`<ul class="keys-list changes">${changes.slice(0, MAX_LISTED).map((one) => keyed(one.path, html`<li>${one.kind === "file" || one.diff ? html`<details .open=${now.open.has(one.path)} @toggle=${(/** @type {any} */ event) => fold(now, one.path, event.target.open)}>
      <summary>${named(one)}</summary>${now.open.has(one.path) ? text(now, one) : null}</details>` : html`<div class="muted">${named(one)}</div>`}${more?.(one)}</li>`))}</ul>
    ${changes.length > MAX_LISTED ? html`<p class="muted">and ${plural(changes.length - MAX_LISTED, "more change")}: give a path to see them</p>` : null}`;
}

/** @param {Row} change */
function named(change) {
  return html`<span class=${TINTS[change.change]}>${change.change === "type" ? "another kind" : change.change}</span> <b>${visible(change.path)}</b> <span>${change.kind} ${change.mode}${change.kind === "file" ? `, ${bytes(change.size)}` : ""}</span>`;
}

/** What was drawn of a change: texts are long, and the page draws often. @type {WeakMap<Row, {whole: boolean, drawn: unknown}>} */
const texts = new WeakMap();

/** @param {View} now @param {Row} change */
function text(now, change) {
  const whole = now.whole.has(change.path);
  const before = texts.get(change);
  if (before?.whole === whole) return before.drawn;
  const lines = linesOf(change);
  const drawn = !lines
    ? html`<p class="muted">Without a text here: it is none, is larger than 256 KiB, or comes after 1 MiB of others. <button @click=${() => adjust({ at: change.path })}>look at it alone</button></p>`
    : html`${signed(lines, `changes of ${visible(change.path)}`, whole ? Infinity : MAX_LINES)}${lines.length > MAX_LINES && !whole ? html`<button @click=${() => { now.whole.add(change.path); changed.set(changed.peek() + 1); }}>show all of it</button>` : null}`;
  texts.set(change, { whole, drawn });
  return drawn;
}

/** The ways out of a conflict; a third is to merge by hand and then to keep the host's. @param {View} now @param {Row} change */
function ways(now, { path, conflict }) {
  const choices = [["", "leave it"], ["ours", "take the agent's"], ["theirs", "keep the host's, or what I merged there"]];
  return html`<p class="warn">${visible(conflict)}</p><label class="line-label">then <select aria-label=${`way out for ${visible(path)}`} @change=${(/** @type {any} */ event) => { now.resolve.delete(path); if (event.target.value) now.resolve.set(path, event.target.value); changed.set(changed.peek() + 1); }}>
    ${choices.map(([value, word]) => html`<option value=${value} .selected=${(now.resolve.get(path) ?? "") === value}>${word}</option>`)}</select></label>`;
}

/** @param {View} now @param {string} path @param {boolean} open */
function fold(now, path, open) {
  if (open === now.open.has(path)) return;
  if (open) now.open.add(path);
  else now.open.delete(path);
  changed.set(changed.peek() + 1);
}

/** @param {View} now @param {Row} reply the one that is shown @param {number} count @param {number} dropped */
function apply(now, reply, count, dropped) {
  const args = { name: now.name, digest: reply.digest, ...(now.paths.length ? { paths: now.paths } : {}), also: [...now.also], resolve: Object.fromEntries(now.resolve) };
  const words = [`${plural(count + (reply.more ?? 0), "change")} of ${visible(now.name)} ${count === 1 ? "is" : "are"} made in the host's directory.`, ...[...now.also].map((root) => `Programs of the host will obey ${visible(root)}.`), ...(dropped ? [`${plural(dropped, "change")} of it ${dropped === 1 ? "is" : "are"} dropped.`] : [])];
  const act = async () => {
    const done = await call("APPLY", args);
    now.stale = null;
    if (done.code !== "conflict") return tell(now, done, "applied");
    await look(now);
    now.stale = now.reply?.changes ? differences(reply, now.reply) : null;
    now.report = null;
    changed.set(changed.peek() + 1);
  };
  asked.set({ place: `apply ${now.of}`, word: "apply", danger: now.also.size > 0, text: words.map((line) => html`<p>${line}</p>`), act });
}

/** @param {View} now */
function undo(now) {
  const text = html`<p>What was applied last of ${visible(now.name)} is taken back, but for what the host has changed since.</p>`;
  asked.set({ place: `apply ${now.of}`, word: "undo", danger: true, text, act: async () => tell(now, await call("UNDO", { name: now.name }), "undone") });
}

/** Show what a call has done and left, and read the changes anew. @param {View} now @param {Row} reply @param {"applied"|"undone"} done */
async function tell(now, reply, done) {
  now.report = reply.success === false ? refused(/** @type {any} */ (reply)) : html`<p class=${reply.conflicts.length ? "warn" : "ok"}>${plural(reply[done].length + (reply.more ?? 0), "path")} ${done}${reply.conflicts.length ? `, ${reply.conflicts.length} left:` : ""}</p>
    <ul>${reply.conflicts.slice(0, MAX_LISTED).map((/** @type {Row} */ one) => html`<li><code>${visible(one.path)}</code> ${visible(one.reason)}</li>`)}</ul>`;
  if (reply.success !== false) [now.also, now.resolve, now.stale] = [new Set(), new Map(), null];
  await look(now);
}

/** The moments that the agent can go back to. @param {View} now @param {string} why */
function moments(now, why) {
  const button = (/** @type {string} */ moment, /** @type {string} */ label) => html`<button class="danger" disabled=${Boolean(why)} title=${why || `agentos rollback ${now.name}@${label}`} @click=${() => rollBack(now, moment, label)}>roll back…</button>`;
  return html`<section class="after"><h3>Roll back</h3>${shown(ask("SNAPSHOTS", { name: now.name }, 10), ({ snapshots }) => html`<ul class="keys-list">
      ${snapshots.map((/** @type {Row} */ one) => keyed(one.snapshot, html`<li class="line-label"><span class="grow">${visible(one.label ?? one.snapshot)} <span class="muted">${exactTime(one.at)}, ${bytes(one.bytes)}</span></span>${button(one.snapshot, one.label ?? one.snapshot)}</li>`))}
      <li class="line-label"><span class="grow">start <span class="muted">the directory as it is, without these changes</span></span>${button("start", "start")}</li></ul>`)}${confirmation(`roll back ${now.of}`)}</section>`;
}

/** @param {View} now @param {string} snapshot @param {string} label */
function rollBack(now, snapshot, label) {
  const text = html`<p>What ${visible(now.name)} has changed since ${visible(label)} is thrown away. If it runs it is restarted. The host's directory stays as it is.</p>`;
  const act = async () => {
    const reply = await call("ROLLBACK", { name: now.name, snapshot });
    if (reply.success === false) return toast(visible(reply.error), true);
    toast(`rollback: ${visible(now.name)} works on ${visible(label)}${reply.restarted ? ", and was restarted" : ""}`);
    [now.report, now.stale] = [null, null];
    forget("SNAPSHOTS");
    await look(now);
  };
  asked.set({ place: `roll back ${now.of}`, word: "roll back", danger: true, text, act });
}
