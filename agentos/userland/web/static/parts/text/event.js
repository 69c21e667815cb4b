// One event as a line.

import { agents } from "../../core/feed.js";
import { html } from "../../core/html.js";
import { bytes, duration, exactTime, number, timeOfDay, visible } from "./format.js";
import { stateWord } from "../state.js";

/** Repeat what other events say, or are what agents do all the time. */
export const ROUTINE = ["AGENT_STATE", "STATE_CHANGED", "MESSAGE_RECEIVED", "TASK_STEP"];
/** @type {Record<string, string>} */
const COLOURS = { info: "muted", warning: "warn", error: "bad" };

/** @param {Record<string, any>} event */
export function eventLine(event) {
  return html`<div class="event">
    <time class="muted" title=${exactTime(event.at)}>${timeOfDay(event.at)}</time>
    <span class="cut">${visible(subject(event))}</span>
    <span class=${`cut ${COLOURS[event.severity] ?? ""}`}>${visible(event.type)}</span>
    <span class="cut muted">${describe(event)}</span>
  </div>`;
}

/** The name of the agent that an event is about. @param {Record<string, any>} event @returns {string} */
export function subject(event) {
  const id = event.source_agent_id;
  return (isEmitted(event) ? null : event.data?.name) ?? (id ? (agents.peek().get(id)?.name ?? `agent ${id}`) : "kernel");
}

/** Whether a caller has emitted it: a name in its data is whatever that caller has written. @param {Record<string, any>} event */
function isEmitted(event) {
  return ["CUSTOM", "TASK_STEP"].includes(event.type) || event.type.startsWith("custom.");
}

/** The data without what the line says already. @param {Record<string, any>} event */
export function describe(event) {
  return isEmitted(event) ? describeEmitted(event.data) : describeFact(event.data ?? {});
}

/** @param {any} data any JSON */
function describeEmitted(data) {
  if (typeof data !== "object" || data === null || Array.isArray(data)) return visible(data);
  return Object.entries(data).map(([key, value]) => (key === "text" ? visible(value) : `${visible(key)} ${shown(key, value)}`)).join(" · ");
}

/** @param {Record<string, any>} data of an event of the kernel's own */
function describeFact(data) {
  if (data.resource === "memory" && data.limit) return `memory ${bytes(data.used)} of ${bytes(data.limit)}`;
  return Object.entries(data)
    .filter(([key, value]) => !["name", "agent_id", "owner_id"].includes(key) && value !== null && value !== "" && value !== false)
    .map(([key, value]) => (key === "state" ? stateWord(value) : ["reason", "text"].includes(key) ? visible(value) : `${key} ${shown(key, value)}`))
    .join(" · ");
}

/** @param {string} key @param {any} value */
function shown(key, value) {
  if (key.endsWith("_at") && typeof value === "number") return timeOfDay(value);
  if (key === "delay" && typeof value === "number") return duration(value * 1000);
  if (["pid", "id"].includes(key)) return visible(value);
  if (typeof value === "number") return number(value, Number.isInteger(value) ? 0 : 2);
  return visible(value);
}
