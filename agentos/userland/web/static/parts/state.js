// States of agents: always a glyph, a word and a colour.

import { html } from "../core/html.js";
import { lookup } from "../core/lookup.js";
import { visible } from "./text/format.js";

/** @type {Record<string, [string, string]>} word and colour */
const STATES = lookup({
  running: ["running", "ok"],
  starting: ["starting", "info"],
  paused: ["paused", "idle"],
  stopping: ["stopping", "idle"],
  waiting: ["waiting", "idle"],
  stopped: ["stopped", "idle"],
  backing_off: ["backing off", "warn"],
  exited: ["exited", "idle"],
  failed: ["failed", "bad"],
});

export const ORDER = ["failed", "backing_off", "starting", "running", "paused", "stopping", "waiting", "stopped", "exited"];

/** The place among others by what needs attention: failed, unhealthy, backing off, then the rest. @param {Record<string, any>|undefined} row */
export function urgency(row) {
  if (!row) return ORDER.length;
  if (row.state === "running" && row.health && row.health !== "healthy") return 0.5;
  const place = ORDER.indexOf(row.state);
  return place < 0 ? ORDER.length : place;
}

/** @param {string} state */
export function stateWord(state) {
  return STATES[state]?.[0] ?? state;
}

/** @param {string} state */
export function stateColour(state) {
  return STATES[state]?.[1] ?? "idle";
}

/** @param {string} state */
export function stateTag(state) {
  return html`<span class=${`state ${stateColour(state)}`}>${glyph(state)}<span>${stateWord(state)}</span></span>`;
}

/** @param {string} state */
export function glyph(state) {
  switch (state) {
    case "running":
      return html`<svg width="10" height="10" aria-hidden="true"><circle cx="5" cy="5" r="4" fill="currentColor" /></svg>`;
    case "starting":
      return html`<svg width="10" height="10" aria-hidden="true"><circle cx="5" cy="5" r="4" fill="none" stroke="currentColor" stroke-width="1.5" /><path d="M5 5V1A4 4 0 0 1 9 5Z" fill="currentColor" /></svg>`;
    case "paused":
      return html`<svg width="10" height="10" aria-hidden="true"><path d="M3 1V9M7 1V9" stroke="currentColor" stroke-width="2" /></svg>`;
    case "backing_off":
      return html`<svg width="10" height="10" aria-hidden="true"><path d="M8.5 5A3.5 3.5 0 1 1 5 1.5H8M6 0L8 1.6L6 3.2" fill="none" stroke="currentColor" stroke-width="1.5" /></svg>`;
    case "failed":
      return html`<svg width="10" height="10" aria-hidden="true"><path d="M1.5 1.5L8.5 8.5M8.5 1.5L1.5 8.5" stroke="currentColor" stroke-width="2" /></svg>`;
    case "stopping":
      return html`<svg width="10" height="10" aria-hidden="true"><circle cx="5" cy="5" r="4" fill="none" stroke="currentColor" stroke-width="1.5" stroke-dasharray="2 2" /></svg>`;
    case "asks":
      return html`<svg width="10" height="10" aria-hidden="true"><path d="M2.5 3A2.5 2.3 0 1 1 5 5.4V7" fill="none" stroke="currentColor" stroke-width="1.5" /><circle cx="5" cy="9" r="1" fill="currentColor" /></svg>`;
    default:
      return html`<svg width="10" height="10" aria-hidden="true"><circle cx="5" cy="5" r="4" fill="none" stroke="currentColor" stroke-width="1.5" /></svg>`;
  }
}

const TAIL = 8; // characters of a long name that stay in view, as they tell it from others

/** A name of any length in what room there is: it is cut before its end. @param {string} name */
export function shortName(name) {
  if (name.length <= 2 * TAIL) return visible(name);
  return html`<span class="short" title=${visible(name)}><span class="cut">${visible(name.slice(0, -TAIL))}</span><span>${visible(name.slice(-TAIL))}</span></span>`;
}

/** A bar with its value against a limit. The words beside it say the same.
 * @param {number|null|undefined} value @param {number|null|undefined} limit */
export function bar(value, limit) {
  const share = value && limit ? Math.min(1, value / limit) : 0;
  const colour = share >= 0.95 ? "var(--bad)" : share >= 0.8 ? "var(--warn)" : "var(--info)";
  return html`<span class="bar" aria-hidden="true"><i .style=${`display:block;height:6px;width:${(share * 100).toFixed(0)}%;background:${colour}`}></i></span>`;
}
