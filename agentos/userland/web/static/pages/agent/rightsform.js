// A change of an agent's permission set: a draft of lines that are added and removed, then one SET_PERMS with the whole set.
// The set that is held is read once more before: a change made meanwhile by another session isn't undone unseen.

import { forget } from "../../core/ask.js";
import { call, findAgent } from "../../core/feed.js";
import { html } from "../../core/html.js";
import { signal } from "../../core/signals.js";
import { toast, whyDisabled } from "../../parts/actions.js";
import { diff } from "../../parts/text/diff.js";
import { visible } from "../../parts/text/format.js";

/** @typedef {Record<string, any>} Row */
/** @typedef {{name: string, before: Row, set: Row, problem: string, busy: boolean}} Draft */

export const DECISIONS = /** @type {[string, string][]} */ ([["allow", "ok"], ["ask", "info"], ["deny", "bad"]]);
const RIGHTS = ["read", "write", "commands", "calls", "domains", "models", "tools", "send", "state_read", "state_write", "agents", "events"];
const LEVELS = ["", "minimal", "readonly", "sandboxed", "standard", "unrestricted"];

const draft = signal(/** @type {Draft|null} */ (null));

/** The set as it would be, null unless this agent's is being changed. @param {string} name @returns {Row|null} */
export function draftOf(name) {
  const now = draft.get();
  return now?.name === name ? now.set : null;
}

/** @param {Row} row of the agent @param {Row} set as GET_PERMS has it */
export function changeButton(row, set) {
  const why = whyDisabled();
  const own = ownOf(set);
  return html`<button disabled=${Boolean(why)} title=${why || `agentos permissions set ${row.name} SET`}
    @click=${() => draft.set({ name: row.name, before: own, set: own, problem: "", busy: false })}>change…</button>`;
}

/** Without the sets of others that bound it. @param {Row} set @returns {Row} */
function ownOf({ bounded_by: _, ...own }) {
  return own;
}

/** One line for each rule. @param {Row} set */
export function ruleLines(set) {
  return DECISIONS.flatMap(([decision, colour]) => Object.entries(set[decision] ?? {}).flatMap(([right, patterns]) => (Array.isArray(patterns) ? patterns : [patterns]).map((pattern) => ({ decision, colour, right, pattern }))));
}

export function rightsForm() {
  const now = draft.get();
  if (!now) return null;
  const why = whyDisabled() || (now.busy ? "the kernel is asked" : "");
  const changes = diff(asLines(now.before), asLines(now.set));
  return html`<section class="confirm" aria-label="change the rules"><h3>Change</h3>
    <form class="toolbar" @submit=${add}>
      <select name="decision" aria-label="decision">${options(DECISIONS.map(([one]) => one))}</select>
      <select name="right" aria-label="right">${options(RIGHTS)}</select>
      <input name="pattern" class="wide-input" aria-label="pattern" placeholder="/data/**" autocomplete="off" spellcheck="false" required><button>add</button></form>
    <label class="line-label">level <select @change=${(/** @type {any} */ event) => set({ level: event.target.value || undefined })}>${LEVELS.map((one) => html`<option value=${one} .selected=${one === (now.set.level ?? "")}>${one || "none"}</option>`)}</select></label>
    <ul class="rules">${ruleLines(now.set).map((rule) => html`<li><span class=${rule.colour}>${rule.decision}</span> <span class="muted">${rule.right}</span> <code>${visible(shown(rule.pattern))}</code><button class="quiet" aria-label=${`remove ${rule.decision} ${rule.right} ${shown(rule.pattern)}`} @click=${() => remove(rule)}>remove</button></li>`)}</ul>
    ${changes ?? html`<p class="muted">Nothing is changed yet.</p>`}
    <p class="prose">It holds until the agent ends, restarts included, and not after a restart of the kernel: no file is written. To keep it, copy the TOML below into the configuration.</p>
    ${now.problem ? html`<p class="bad" role="alert">${visible(now.problem)}</p>` : null}
    <div class="acts"><button class="primary" disabled=${Boolean(why) || !changes} title=${why || `agentos permissions set ${now.name} SET`} @click=${apply}>set the rules</button><button @click=${() => draft.set(null)}>cancel</button></div></section>`;
}

/** The first one is selected: a browser takes the one that is inserted first. @param {string[]} words */
function options(words) {
  return words.map((one, index) => html`<option .selected=${index === 0}>${one}</option>`);
}

/** @param {unknown} pattern */
function shown(pattern) {
  return typeof pattern === "string" ? pattern : JSON.stringify(pattern);
}

/** @param {Row} set */
function asLines(set) {
  return [...(set.level ? [`level ${set.level}`] : []), ...ruleLines(set).map((rule) => `${rule.decision} ${rule.right} ${shown(rule.pattern)}`)];
}

/** @param {Row} changes */
function set(changes) {
  const now = draft.peek();
  if (now) draft.set({ ...now, problem: "", set: { ...now.set, ...changes } });
}

/** Replace the patterns of one decision and right. @param {string} decision @param {string} right @param {(patterns: unknown[]) => unknown[]} change */
function replace(decision, right, change) {
  const rules = { ...draft.peek()?.set[decision] };
  const patterns = change([rules[right] ?? []].flat());
  if (patterns.length) rules[right] = patterns;
  else delete rules[right];
  set({ [decision]: Object.keys(rules).length ? rules : undefined });
}

/** @param {Event} event */
function add(event) {
  event.preventDefault();
  const form = /** @type {HTMLFormElement} */ (event.target);
  const text = (/** @type {string} */ name) => String(new FormData(form).get(name)).trim();
  const pattern = text("pattern");
  if (!pattern) return;
  replace(text("decision"), text("right"), (patterns) => (patterns.includes(pattern) ? patterns : [...patterns, pattern]));
  /** @type {HTMLInputElement} */ (form.elements.namedItem("pattern")).value = "";
}

/** @param {{decision: string, right: string, pattern: unknown}} rule */
function remove(rule) {
  replace(rule.decision, rule.right, (patterns) => patterns.filter((one) => one !== rule.pattern));
}

async function apply() {
  const now = draft.peek();
  if (!now) return;
  draft.set({ ...now, problem: "", busy: true });
  const changes = await setRules(now);
  forget("GET_PERMS");
  if (changes) {
    const later = draft.peek(); // may be cancelled
    if (later) draft.set({ ...later, ...changes, busy: false });
    return;
  }
  draft.set(null);
  toast(`permissions: ${visible(now.name)}: set, from its next call on`);
}

/** What is to change in the draft as the rules weren't set, null if they were. @param {Draft} draft @returns {Promise<Partial<Draft>|null>} */
async function setRules({ name, before, set }) {
  const id = findAgent(name)?.id; // not an older one of this name
  if (id === undefined) return { problem: `${name} has ended` };
  const held = await call("GET_PERMS", { agent_id: id });
  if (held?.success === false) return { problem: held.error };
  const own = ownOf(held.permissions);
  if (JSON.stringify(own) !== JSON.stringify(before)) return { before: own, problem: "The rules were changed elsewhere meanwhile. The lines above say what this change would now do." };
  const reply = await call("SET_PERMS", { agent_id: id, permissions: set });
  return reply?.success === false ? { problem: reply.error } : null;
}
