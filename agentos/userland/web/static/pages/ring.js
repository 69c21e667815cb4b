// Notifications of the browser: calls that begin to wait for a person, agents that fail, while the page isn't in front.

import { connected } from "../core/feed.js";
import { html } from "../core/html.js";
import { go } from "../core/route.js";
import { effect, signal } from "../core/signals.js";
import { toast } from "../parts/actions.js";
import { plural, visible } from "../parts/text/format.js";
import { attention } from "./overview.js";

/** @typedef {ReturnType<typeof attention>[number]} Item */

const STORED = "agentos-notifications";
const supported = "Notification" in globalThis;
const rings = signal(supported && Notification.permission === "granted" && localStorage.getItem(STORED) === "on");
/** The keys of what was there at the last look; null before the first one, which notifies of nothing. @type {Set<string>|null} */
let known = null;

effect(() => {
  const items = attention().filter((item) => item.approval || item.row?.state === "failed");
  if (!connected.get()) return;
  const before = known;
  known = new Set(items.map((item) => item.key));
  const fresh = items.filter((item) => before && !before.has(item.key));
  if (fresh.length && rings.peek() && (document.hidden || !document.hasFocus())) notify(fresh);
}, true);

/** One notification for all that is new: it takes the place of the last one. @param {Item[]} items */
function notify(items) {
  const [item] = items;
  const one = item.approval ? `${visible(item.name)} asks: ${item.approval.call}` : `${visible(item.name)} failed`;
  const text = items.length > 1 ? `and ${plural(items.length - 1, "more thing")} that ${items.length > 2 ? "need" : "needs"} attention` : "";
  const shown = new Notification(one, { body: text, tag: "agentos" });
  shown.onclick = () => {
    focus();
    if (item.approval) go("approvals", { id: String(item.approval.id) });
    else go("overview", { agent: item.name });
  };
}

/** The button that asks the browser; null where it has no notifications. */
export function ringButton() {
  if (!supported) return null;
  const on = rings.get();
  const title = `notifications of approvals and failures, while this page isn't in front: ${on ? "on" : "off"}`;
  return html`<button class="quiet" title=${title} aria-label="notifications" aria-pressed=${String(on)} @click=${toggle}><svg width="16" height="16" class="middle" aria-hidden="true"><path d="M3.5 12V7a4.5 4.5 0 0 1 9 0v5l1 1h-11zM6.5 15h3" fill=${on ? "currentColor" : "none"} stroke="currentColor" stroke-width="1.5" /></svg></button>`;
}

async function toggle() {
  const on = !rings.peek() && (await Notification.requestPermission()) === "granted";
  if (!on && !rings.peek()) return toast("the browser doesn't allow notifications of this page: allow them beside its address", true);
  try {
    if (on) new Notification("agentos", { body: "Approvals and failures are told like this.", tag: "agentos" });
  } catch {
    return toast("this browser shows notifications of installed pages only", true); // Android's
  }
  localStorage.setItem(STORED, on ? "on" : "off");
  rings.set(on);
}
