// How the last life of an agent that doesn't run ended: when, and the last line that it wrote to stderr.

import { call, kernel } from "../../core/feed.js";
import { askOnce } from "../once.js";

/** @typedef {Record<string, any>} Row */
/** `at` in milliseconds since the epoch, null if the audit log doesn't say.
 * @typedef {{at: number|null, text: string}} End */

const LINES = 20; // of its output, in which the last one of stderr is looked for

const ends = askOnce(look);

/** @param {Row} row of an agent without a program @returns {End|undefined} undefined while it is asked for */
export function lastEnd(row) {
  return ends(`${row.id} ${row.restarts} ${row.state}`, row);
}

/** @param {Row} row @returns {Promise<End|undefined>} */
async function look(row) {
  const [log, audit] = await Promise.all([call("LOGS", { name: row.name, tail: LINES }), call("GET_AUDIT_LOG", { agent_id: row.id, category: "agents", limit: 1 })]);
  if (log?.code === "unavailable" || audit?.code === "unavailable") return undefined;
  const at = (audit?.entries?.[0]?.at ?? 0) * 1000;
  return { at: at >= (kernel.peek()?.since_ms ?? 0) && at ? at : null, text: lastOfStderr(log?.lines ?? []) };
}

/** The last line on stderr of the last life: what stands between the kernel's notes of two ends. @param {Row[]} lines */
export function lastOfStderr(lines) {
  const isEnd = (/** @type {Row} */ line) => line.stream === "kernel" && line.text.startsWith("ended");
  const ended = lines.findLastIndex(isEnd);
  const life = ended < 0 ? lines : lines.slice(0, ended);
  return life.slice(life.findLastIndex(isEnd) + 1).findLast((line) => line.stream === "stderr" && line.text.trim())?.text ?? "";
}
