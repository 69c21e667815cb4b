// Fork from here: the program runs again, gets the recorded answers up to a question and there the one in the editor, and goes on live.

import { RECORDINGS, ask, forget } from "../../core/ask.js";
import { boot, call, findAgent } from "../../core/feed.js";
import { html, keyed } from "../../core/html.js";
import { link } from "../../core/route.js";
import { signal } from "../../core/signals.js";
import { asked, confirmation, whyDisabled } from "../../parts/actions.js";
import { refused } from "../../parts/reply.js";
import { stateTag } from "../../parts/state.js";
import { duration, exactTime, number as digits, plural, visible, visibleLines } from "../../parts/text/format.js";
import { rules } from "../agent/rights.js";

/** @typedef {Record<string, any>} Row */

const POLL_MS = 500;
const MAX_TIMES = 10; // the kernel runs no more at once
const CHECK_SECONDS = 3600; // EXEC's longest
const GOOD = ["identical", "drifted"]; // verdicts about what came before the question
/** The forks that were begun last: `reply` is of REPLAY_STATUS, or a refusal, `check` of EXEC; of a tree `agent` is the fork's name. @typedef {{agent: string, reply: Row, check: Row|null}} Fork */
const begun = signal({ of: "", forks: /** @type {Fork[]} */ ([]) });

/** The forks of a recording. @param {string} name */
export function branchesOf(name) {
  const reply = ask(RECORDINGS, {}, 10);
  const forks = (reply?.lives ?? []).filter((/** @type {Row} */ one) => one.forked?.startsWith(`${name}@`));
  if (!forks.length) return null;
  return html`<section><h3>forks</h3><ul class="branches">${forks.map((/** @type {Row} */ one) => keyed(one.recording, html`<li><span aria-hidden="true">└ </span><a class="text" href=${link("recordings", { rec: one.recording })}>${visible(one.recording)}</a> ${agentLink(one.agent)} <span class="muted">live from call ${visible(one.forked.slice(name.length + 1))}, ${exactTime(one.began)}${one.ended === null ? "" : `, ${duration((one.ended - one.began) * 1000)}`}</span> <span class=${one.failed ? "bad" : ""}>${visible(one.end)}</span></li>`))}</ul></section>`;
}

/** A fork's agent, with its state while the kernel knows it. @param {string} name */
function agentLink(name) {
  const row = findAgent(name);
  return html`<a class="text" href=${link("agents", { agent: name })}>${visible(name)}</a>${row ? html` ${stateTag(row.state)}` : null}`;
}

/** @param {Row} life @param {Row} entry a THINK @param {Row} found its contents */
export function forkPart(life, entry, found) {
  const of = JSON.stringify([life.recording, entry.id, boot.get()]);
  const now = begun.get();
  const why = whyDisabled() || (life.replayable ? "" : `it can't be replayed: ${visible(life.why)}`) || (now.of === of && now.forks.some(runs) ? "one runs" : "");
  const hint = found.cut ? "The recorded answer is too long for this page: what is left empty stays as recorded." : "What isn't changed stays as recorded. If nothing is changed, the model is asked here.";
  const submit = async (/** @type {any} */ event) => {
    event.preventDefault();
    const text = (/** @type {string} */ name) => event.target.elements[name]?.value ?? "";
    const edit = edited(found, text("content"), text("calls"));
    if (typeof edit === "string") return refuse(of, { success: false, code: "bad_request", error: edit });
    const tree = text("agents") === "tree";
    const held = await readRights(tree ? life.agents : [life.agent]);
    const refusal = held.find(({ reply }) => reply.success === false && !(tree && reply.code === "not_found"));
    if (refusal) return refuse(of, refusal.reply);
    const times = Number(text("times"));
    asked.set({ place: of, word: times > 1 ? `begin ${times} forks` : "begin the fork", danger: true, text: rights(held, tree), act: () => begin(life, entry.id, edit, of, tree, times, text("check").trim()) });
  };
  return html`<section class="after"><h3>fork from here</h3><form class="form" @submit=${submit}>
      ${life.agents.length > 1 ? html`<label><span>agents</span><select name="agents"><option value="life">this life alone</option><option value="tree">all agents of the tree</option></select><span class="hint">all: those that lived at this question go on live together, with the messages that were under way</span></label>` : null}
      <label><span>answer</span><textarea name="content" rows="4" .value=${found.cut ? "" : String(found.answer ?? "")}></textarea><span class="hint">${hint}</span></label>
      <label><span>calls of tools</span><textarea name="calls" rows="2" spellcheck="false" .value=${found.cut ? "" : found.tool_calls}></textarea><span class="hint">a JSON array of objects with id, name and arguments, or empty</span></label>
      <label><span>times</span><input name="times" type="number" min="1" max=${MAX_TIMES} value="1" required><span class="hint">so many forks, side by side; of a tree one after the other</span></label>
      <label><span>check</span><input name="check" autocomplete="off" spellcheck="false" placeholder="make test"><span class="hint">a command line that judges each in its jail, after its end, of a tree in that of the agent that asked; empty: none</span></label>
      <div class="acts"><button disabled=${Boolean(why)} title=${why || `agentos fork REC@N ${life.agents.length > 1 ? "[--tree] " : ""}--edit FILE --times K --check COMMAND`}>fork from here…</button></div></form>
    ${confirmation(of)}${now.of === of ? now.forks.map((one) => keyed(one.agent, outcome(one))) : null}</section>`;
}

/** @param {Fork} fork */
function runs(fork) {
  return fork.reply.state === "RUNNING" || fork.check?.state === "RUNNING";
}

/** Nothing was begun. @param {string} of @param {Row} reply */
function refuse(of, reply) {
  begun.set({ of, forks: [{ agent: "", reply, check: null }] });
}

/** The keys of the answer that a person changed; a sentence if they can't be read. @param {Row} found @param {string} content @param {string} calls @returns {Row|string} */
function edited(found, content, calls) {
  const former = found.cut ? { content: "", calls: "" } : { content: String(found.answer ?? ""), calls: found.tool_calls };
  /** @type {Row} */
  const edit = content === former.content ? {} : { content };
  if (calls.trim() === former.calls.trim()) return edit;
  try {
    return { ...edit, tool_calls: calls.trim() ? JSON.parse(calls) : [] };
  } catch (error) {
    return `calls of tools: no JSON: ${/** @type {Error} */ (error).message}`;
  }
}

/** The rights of agents: of each the reply of GET_PERMS, or a refusal if it isn't there now. @param {string[]} names */
async function readRights(names) {
  const held = [];
  for (const name of names) {
    const row = findAgent(name);
    const reply = row ? await call("GET_PERMS", { agent_id: row.id }) : { success: false, code: "not_found", error: `there is no agent ${name} now` };
    held.push({ name, reply: /** @type {Row} */ (reply) });
  }
  return held;
}

/** What the live part may do; of a tree an agent that isn't there now is one that another spawns. @param {{name: string, reply: Row}[]} held @param {boolean} tree */
function rights(held, tree) {
  return html`<p>What follows is done for real, with the rights that ${tree ? "each agent" : visible(held[0].name)} has now:</p>
    ${held.map(({ name, reply }) => keyed(name, html`<div>${tree ? html`<p class="bold">${visible(name)}</p>` : null}${reply.success === false ? html`<p>what its spawner may do, at most</p>` : html`${rules(reply.permissions)}
      ${(reply.permissions.bounded_by ?? []).map((/** @type {Row} */ one) => html`<p>bounded by ${visible(one.name)}:</p>${rules(one)}`)}`}</div>`))}`;
}

/** @param {Row} life @param {number} number @param {Row} edit @param {string} of @param {boolean} tree @param {number} times @param {string} check a command line, or empty */
async function begin(life, number, edit, of, tree, times, check) {
  const changed = Object.keys(edit).length > 0;
  const args = { path: life.recording, ...(tree ? {} : { agent: life.life }), then: "live", until: changed ? number + 1 : number, ...(changed ? { edits: { [number]: edit } } : {}), ...(check ? { hold: true } : {}) };
  begun.set({ of, forks: [] });
  for (let count = 0; count < times; count++) {
    const reply = await call("REPLAY_START", args);
    if (reply.success === false) return note(of, { agent: "", reply, check: null });
    const ended = follow(of, { agent: reply.name, reply: { ...reply, verdict: null }, check: null }, life.life, check);
    if (tree) await ended; // the next fork's members may have the names that are chosen for this one's
  }
}

/** Show a fork as it is now, unless others are shown meanwhile. @param {string} of @param {Fork} fork */
function note(of, fork) {
  const now = begun.peek();
  if (now.of !== of) return;
  const known = now.forks.some((one) => one.agent === fork.agent);
  begun.set({ of, forks: known ? now.forks.map((one) => (one.agent === fork.agent ? fork : one)) : [...now.forks, fork] });
}

/** Show a fork until it has ended, and check it then, of a tree in the files of the agent in the place of `life`.
 * @param {string} of @param {Fork} fork @param {string} life @param {string} check */
async function follow(of, fork, life, check) {
  note(of, fork);
  while (fork.reply.state === "RUNNING") {
    await new Promise((done) => setTimeout(done, POLL_MS));
    fork = { ...fork, reply: await call("REPLAY_STATUS", { name: fork.agent }) };
    note(of, fork);
  }
  forget(RECORDINGS);
  if (!check) return;
  const members = /** @type {Row[]} */ (fork.reply.lives ?? []);
  if (GOOD.includes(fork.reply.verdict)) {
    note(of, { ...fork, check: { state: "RUNNING" } });
    note(of, { ...fork, check: await judge(members.find((one) => one.life === life)?.agent ?? fork.agent, check) });
  }
  for (const one of members) await call("KILL", { name: one.agent, grace: 0 }); // the jails that were kept for the check
}

/** Run a command line in a fork's jail, which is kept for it; what it changes is taken back. @param {string} name @param {string} command */
async function judge(name, command) {
  const before = await call("SNAPSHOT", { name });
  if (before.success === false) return before;
  const done = await call("EXEC", { name, command, timeout: CHECK_SECONDS });
  await call("KILL", { name, grace: 0 });
  await call("WAIT", { name });
  const back = await call("ROLLBACK", { name, snapshot: before.snapshot });
  if (back.success !== false) await call("SNAPSHOTS", { name, remove: before.snapshot });
  return done.success !== false && back.success === false ? back : done;
}

/** @param {Fork} fork */
function outcome({ agent, reply, check }) {
  if (reply.success === false) return refused(reply);
  return html`<div role="status" class="after"><p><b>${visible(agent)}</b> ${reply.state === "RUNNING" ? "runs" : html`has ended; before the question: ${reply.verdict ?? "stopped"}`} ${recordingLink(reply)}</p>
    ${reply.lives?.length ? html`<ul class="branches">${reply.lives.map((/** @type {Row} */ one) => keyed(one.life, member(one)))}</ul>` : null}
    ${check ? judged(check) : null}
    ${reply.error || reply.divergence ? html`<pre class="bad">${visibleLines(reply.error || reply.divergence)}</pre>` : null}${notes(reply)}</div>`;
}

/** A member of a tree's fork. @param {Row} one of the `lives` in a reply of REPLAY_STATUS */
function member(one) {
  return html`<li><span aria-hidden="true">└ </span>${agentLink(one.agent)} <span class="muted">in place of ${visible(one.life)}, ${digits(one.entries_replayed)} of ${plural(one.total_entries - one.entries_skipped, "call")} made again</span> ${one.verdict ? html`<span class=${GOOD.includes(one.verdict) ? "ok" : "bad"}>${one.verdict}</span>` : null} ${recordingLink(one)}${notes(one)}</li>`;
}

/** The recording that was made of a fork, once there is one. @param {Row} reply of REPLAY_STATUS, or of its lives */
function recordingLink(reply) {
  const own = /([^/]*)[.]recording$/.exec(reply.recording ?? "")?.[1];
  return own ? html`<a class="text" href=${link("recordings", { rec: own })}>${visible(own)}</a>` : null;
}

/** @param {Row} reply of REPLAY_STATUS, or of its lives */
function notes(reply) {
  return (reply.notes ?? []).map((/** @type {string} */ note) => html`<p class="muted">${visible(note)}</p>`);
}

/** @param {Row} check a reply of EXEC */
function judged(check) {
  if (check.state === "RUNNING") return html`<p class="muted">the check runs</p>`;
  if (check.success === false) return refused(check);
  const said = `${check.stdout}${check.stderr}`.trimEnd();
  return html`<p>check: <b class=${check.exit_code ? "bad" : "ok"}>${check.exit_code ? `exit ${check.exit_code}` : "passed"}</b></p>${check.exit_code && said ? html`<pre>${visibleLines(said.slice(-2000))}</pre>` : null}`;
}
