// Events: everything that happens, as it happens.

import { events } from "../core/feed.js";
import { html, keyed } from "../core/html.js";
import { adjust, route } from "../core/route.js";
import { signal } from "../core/signals.js";
import { ROUTINE, describe, eventLine, subject } from "../parts/text/event.js";
import { plural } from "../parts/text/format.js";

const held = signal(/** @type {Record<string, any>[]|null} */ (null));

export function eventsPage() {
  const { filter = "", routine } = route.get().params;
  const all = held.get() ?? events.get();
  const wanted = filter.toLowerCase();
  const found = wanted ? all.filter((event) => `${event.type} ${subject(event)} ${describe(event)}`.toLowerCase().includes(wanted)) : all;
  const shown = routine ? found : found.filter((event) => !ROUTINE.includes(event.type));
  const unseen = held.get() ? events.get().filter((event) => event.boot !== all.at(-1)?.boot || event.seq > all.at(-1)?.seq).length : 0;
  return html`
    <div class="toolbar">
      <label class="grow"><span class="hidden-text">search</span><input id="filter" placeholder="search in type, name and text" .value=${filter}
        @input=${(/** @type {any} */ event) => adjust({ filter: event.target.value || null }, true)}></label>
      <button aria-pressed=${String(Boolean(routine))} title=${ROUTINE.join(", ")} @click=${() => adjust({ routine: routine ? null : "1" }, true)}>routine${routine ? "" : ` (${found.length - shown.length} hidden)`}</button>
      <button aria-pressed=${held.get() ? "false" : "true"} @click=${toggleFollow}>follow</button>
      ${unseen ? html`<button @click=${toggleFollow}>${unseen} new</button>` : null}
    </div>
    ${shown.length ? html`<div class="block">${shown.slice(-300).reverse().map((event) => keyed(`${event.boot}.${event.seq}`, eventLine(event)))}</div>` : html`<p class="block empty">${wanted ? "No event contains that." : "No event yet."}</p>`}
    <p class="muted after">${plural(shown.length, "event")} since this page was opened, and the last ones before; <code>agentos events --since 1h</code> shows more.</p>`;
}

export function toggleFollow() {
  held.set(held.peek() ? null : [...events.peek()]);
}
