// Replies to calls that a page shows: made once for what the page names, made anew when asked, when they get old, or of another run of the kernel.

import { boot, call, connected, recordings } from "./feed.js";
import { signal } from "./signals.js";

/** @typedef {{reply: import("./feed.js").Reply|null, at: number, loading: boolean, changed: ReturnType<typeof signal<number>>}} Answer */

/** @type {Map<string, Answer>} */
const answers = new Map();
const MAX_KEPT = 40;
/** What the dashboard reads itself, for the name of a call. */
export const RECORDINGS = "recordings";

/** The last reply to this call, null while there is none yet. It is asked again when older than `seconds`, unless no rule allows it.
 * @param {string} name @param {Record<string, any>} args @param {number} [seconds] */
export function ask(name, args, seconds = Infinity) {
  const key = `${name} ${JSON.stringify(args)} ${boot.get()}`;
  let answer = answers.get(key);
  if (!answer) {
    answer = { reply: null, at: 0, loading: false, changed: signal(0) };
    answers.set(key, answer);
    if (answers.size > MAX_KEPT) answers.delete(/** @type {string} */ (answers.keys().next().value));
  }
  answer.changed.get();
  const old = performance.now() - answer.at > seconds * 1000 && answer.reply?.code !== "permission_denied";
  if (connected.get() && !answer.loading && (!answer.at || old)) load(name, args, answer);
  return answer.reply;
}

/** @param {string} name @param {Record<string, any>} args @param {Answer} answer */
async function load(name, args, answer) {
  answer.loading = true;
  const reply = await (name === RECORDINGS ? recordings(args) : call(name, args));
  answer.loading = false;
  answer.at = performance.now();
  if (reply?.code !== "unavailable") answer.reply = reply;
  answer.changed.set(answer.changed.peek() + 1);
}

/** Ask these calls again when they are shown next. @param {string} name */
export function forget(name) {
  for (const [key, answer] of answers) {
    if (!key.startsWith(`${name} `)) continue;
    answer.at = 0;
    answer.changed.set(answer.changed.peek() + 1);
  }
}
