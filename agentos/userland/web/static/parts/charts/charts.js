// The charts of the kernel and of one agent: the last 15 minutes, or 5, or 1, of what the kernel has sampled.

import { ask } from "../../core/ask.js";
import { agents, ofThisRun } from "../../core/feed.js";
import { html } from "../../core/html.js";
import { signal } from "../../core/signals.js";
import { bytes, clock, duration, number, plural } from "../text/format.js";
import { refused } from "../reply.js";

/** @typedef {Record<string, any>} Row */
/** @typedef {{title: string, keys: [string, string][], format: (value: number) => string, limit?: (metrics: Row) => number|null}} Figure */

const WINDOWS = [60, 300, 900];
export const shownSeconds = signal(900);
export const asTable = signal(false);

/** @type {Figure[]} */
const OF_KERNEL = [
  { title: "CPU of the host, cores", keys: [["cpu", "host"], ["kernel_cpu", "kernel"]], format: (value) => number(value, 2), limit: (metrics) => metrics.cpu?.count ?? null },
  { title: "Memory of the host", keys: [["memory_bytes", "used"]], format: bytes, limit: (metrics) => metrics.memory?.total_bytes ?? null },
  { title: "Loop lag", keys: [["loop_lag_seconds", "lag"]], format: (value) => `${number(value * 1000, 1)}ms` },
  { title: "Questions in the line", keys: [["llm_waiting", "waiting"]], format: (value) => number(value) },
];
export const OF_MODEL = OF_KERNEL.slice(-1);
/** @type {Figure[]} */
const OF_AGENT = [
  { title: "Memory", keys: [["memory_bytes", "memory"]], format: bytes, limit: (metrics) => metrics.cgroup?.memory_limit_bytes ?? null },
  { title: "CPU, cores", keys: [["cpu", "cpu"]], format: (value) => number(value, 2) },
  { title: "Processes", keys: [["pids", "processes"]], format: (value) => number(value), limit: (metrics) => metrics.cgroup?.pids_limit ?? null },
];

/** @param {number|null} agent its id, null for the kernel and its host @param {Figure[]} [figures] */
export function charts(agent, figures = agent === null ? OF_KERNEL : OF_AGENT) {
  clock.get();
  const seconds = shownSeconds.get();
  const reply = agent === null ? ask("METRICS_SYSTEM", { history: seconds }, 5) : ask("METRICS_AGENT", { agent_id: agent, history: seconds }, 2);
  if (reply === null) return null;
  if (reply.success === false) return refused(reply);
  const metrics = reply.metrics ?? {};
  const history = metrics.history;
  if (!history?.at?.length) return null;
  const restarts = agent === null ? [] : restartsOf(agent);
  const runs = agent === null || agents.get().get(agent)?.running;
  const found = figures.map((figure) => draw(figure, metrics, history, restarts, seconds, runs)).filter(Boolean);
  return html`<section aria-label="charts"><div class="heading"><h2 class="label">Last ${seconds / 60} min${known(history.at, seconds)}</h2>
    <div class="windows" role="group" aria-label="window of the charts">${WINDOWS.map((one) => html`<button aria-pressed=${String(one === seconds)} @click=${() => shownSeconds.set(one)}>${one / 60} min</button>`)}</div></div><div class="charts">${found}</div>
    ${restarts.some((at) => at >= history.at[0]) ? html`<p class="muted after"><span class="tick" aria-hidden="true"></span>${plural(restarts.filter((at) => at >= history.at[0]).length, "restart")} in this time</p>` : null}</section>`;
}

/** When lives of an agent began after its first, in seconds since the epoch. @param {number} agent @returns {number[]} */
function restartsOf(agent) {
  const reply = ask("GET_AUDIT_LOG", { agent_id: agent, category: "agents", limit: 200 }, 5);
  return ofThisRun(reply?.entries ?? []).filter((entry) => entry.call === "AGENT_READY" && !entry.about.startsWith("life 1,")).map((entry) => entry.at);
}

/** For how long there are samples, in words, where it is less than the window. @param {number[]} at @param {number} seconds */
function known(at, seconds) {
  const covered = Math.round(at[at.length - 1] - at[0]);
  return covered < 0.9 * seconds ? `, known for ${duration(1000 * covered)}` : "";
}

/** @param {Figure} figure @param {Row} metrics @param {Row} history @param {number[]} restarts @param {number} seconds the window @param {boolean} runs else nothing of it is present */
function draw(figure, metrics, history, restarts, seconds, runs) {
  const series = figure.keys.filter(([key]) => history[key]).map(([key, name]) => ({ name, values: history[key] }));
  if (!series.length) return null;
  const known = series[0].values.filter((/** @type {number|null} */ value) => value !== null);
  const last = known.length && runs ? figure.format(known[known.length - 1]) : "–";
  const limit = figure.limit?.(metrics) ?? null;
  const label = `${figure.title}: ${runs ? `now ${last}` : "it has ended"}${limit ? `, limit ${figure.format(limit)}` : ""}`;
  if (asTable.get()) {
    return html`<figure><figcaption><span>${figure.title}</span><span>${last}</span></figcaption><table><tbody>${history.at.slice(-10).map((/** @type {number} */ at, /** @type {number} */ index) => {
      const value = series[0].values.slice(-10)[index];
      return html`<tr><td class="muted">${new Date(at * 1000).toLocaleTimeString("en-GB")}</td><td class="number">${value === null ? "–" : figure.format(value)}</td></tr>`;
    })}</tbody></table></figure>`;
  }
  return html`<figure><figcaption><span>${figure.title}</span><span>${last}</span></figcaption><os-chart .view=${{ at: history.at, seconds, series, limit, restarts, spark: series.length === 1, format: figure.format, label }}></os-chart></figure>`;
}

/** @param {number} step 1: a longer window, -1: a shorter one */
export function zoom(step) {
  const at = WINDOWS.indexOf(shownSeconds.peek()) + step;
  shownSeconds.set(WINDOWS[Math.max(0, Math.min(WINDOWS.length - 1, at))]);
}
