// Ask again: one recorded question, of another model; the answers stand side by side, with what they cost.

import { askAgain, boot } from "../../core/feed.js";
import { html } from "../../core/html.js";
import { signal } from "../../core/signals.js";
import { whyDisabled } from "../../parts/actions.js";
import { duration, number, visible, visibleLines } from "../../parts/text/format.js";

/** @typedef {Record<string, any>} Row */

const MAX_KEPT = 20; // answers
/** Those to the question that was asked again last; `busy` while one is awaited. */
const asked = signal({ of: "", busy: false, answers: /** @type {Row[]} */ ([]) });

/** @param {Row} life @param {Row} entry a THINK @param {Row} found its contents */
export function againPart(life, entry, found) {
  const of = JSON.stringify([life.recording, entry.id, boot.get()]);
  const now = asked.get();
  const mine = now.of === of ? now : { of, busy: false, answers: [] };
  const why = whyDisabled() || (mine.busy ? "it is being asked" : "");
  const submit = async (/** @type {any} */ event) => {
    event.preventDefault();
    const model = event.target.elements.model.value.trim();
    asked.set({ ...mine, busy: true });
    const reply = await askAgain(life.recording, entry.id, model);
    const last = asked.peek().of === of ? asked.peek() : mine;
    asked.set({ of, busy: false, answers: [...last.answers, { ...reply, asked: model }].slice(-MAX_KEPT) });
  };
  const recorded = { ...found.used, success: !found.error, content: found.answer, error: found.error, called: found.tool_calls };
  return html`<section class="after"><h3>ask again</h3><form class="toolbar" @submit=${submit}><input name="model" class="wide-input" aria-label="model" autocomplete="off" required .value=${found.model}>
      <button disabled=${Boolean(why)} title=${why || "agentos fork REC@N --only --model …"}>ask again</button></form>
    ${mine.answers.length ? html`<div class="answers" role="status">${answer(`${found.model} (recorded)`, recorded)}${mine.answers.map((one) => answer(one.asked, { ...one, called: one.tool_calls?.length ? JSON.stringify(one.tool_calls) : "" }))}</div>` : null}
    ${mine.busy ? html`<p class="muted" role="status">asking…</p>` : null}</section>`;
}

/** @param {string} model @param {Row} reply */
function answer(model, reply) {
  const use = reply.usage && typeof reply.usage === "object" ? `${number(reply.usage.input)} in, ${number(reply.usage.output)} out, ` : "";
  const cost = typeof reply.cost === "number" ? `cost ${number(reply.cost, 4)}` : "cost unknown";
  const took = typeof reply.latency_ms === "number" ? `, ${duration(reply.latency_ms)}` : "";
  return html`<div class="block"><p class="bold">${visible(model)}</p>${reply.success === false ? html`<p class="bad">${visible(reply.error)}</p>` : html`<p class="muted">${use}${cost}${took}</p><pre>${visibleLines(reply.content)}</pre>${reply.called ? html`<pre>${visibleLines(reply.called)}</pre>` : null}`}</div>`;
}
