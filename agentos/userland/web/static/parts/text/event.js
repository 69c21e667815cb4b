// One event as a line.

import { agents } from "../../core/feed.js";
import { html } from "../../core/html.js";
import { lookup } from "../../core/lookup.js";
import { bytes, duration, exactTime, number, timeOfDay, visible } from "./format.js";
import { stateWord } from "../state.js";

/** Repeat what other events say, or are what agents do all the time. */
export const ROUTINE = ["AGENT_STATE", "STATE_CHANGED", "MESSAGE_RECEIVED", "TASK_STEP"];
/** @type {Record<string, string>} */
const COLOURS = { info: "muted", warning: "warn", error: "bad" };

/** The words of `agentos events` for the kernel's own. @type {Record<string, (data: Record<string, any>) => string>} */
const WORDS = lookup(/** @type {Record<string, (data: Record<string, any>) => string>} */ ({
  AGENT_SPAWNED: () => "begins",
  AGENT_READY: ({ pid }) => `running${pid ? ` (pid ${pid})` : ""}`,
  AGENT_PAUSED: () => "paused",
  AGENT_RESUMED: () => "resumed",
  AGENT_RESTARTING: ({ delay, failures }) => `in ${duration(delay * 1000)} (failure ${failures} in a row)`,
  AGENT_FAILED: ({ reason }) => `given up: ${visible(reason)}`,
  AGENT_ESCALATED: ({ supervisor, reason }) => `${visible(supervisor)} gave up: ${visible(reason)}`,
  SYSCALL_BLOCKED: ({ reason }) => visible(reason),
  APPROVAL_REQUESTED: ({ id, call }) => `${id}: ${call} waits for a person`,
  APPROVAL_DECIDED: ({ id, call, allowed, by, reason }) => (by === null ? `${id}: ${call} has expired` : `${id}: ${call} ${allowed ? "allowed" : "refused"} by ${visible(by)}${reason ? `: ${visible(reason)}` : ""}`),
  KERNEL_STARTED: ({ missing }) => `ready${missing?.length ? `; not up yet: ${missing.map(visible).join(", ")}` : ""}`,
  MODEL_AVAILABLE: () => "accepts requests again",
}));
/** What differs between events that are equal for people. */
const VOLATILE = ["pid", "delay", "failures", "id", "agent_id", "owner_id", "asked_at", "expires_at", "used", "until", "renews_at", "version"];

/** The same text for events that are equal for people: a crash and the next one. @param {Record<string, any>} event */
export function sameness(event) {
  const data = isEmitted(event) ? event.data : Object.entries(event.data ?? {}).filter(([key]) => !VOLATILE.includes(key));
  return JSON.stringify([event.type, subject(event), data]);
}

/** @param {Record<string, any>} event @param {unknown} [many] how many equal ones there are */
export function eventLine(event, many = null) {
  return html`<div class="event">
    <time class="muted" title=${exactTime(event.at)}>${when(event.at)}</time>
    <span class="cut">${visible(subject(event))}</span>
    <span class=${`cut ${COLOURS[event.severity] ?? ""}`}>${visible(event.type)}</span>
    <span class="cut muted">${describe(event)}</span>
    <span class="number">${many}</span>
  </div>`;
}

/** `12:04:31`, or of another day `11-28 12:04`. @param {number} at */
function when(at) {
  const text = exactTime(at);
  return text.slice(0, 10) === exactTime(Date.now() / 1000).slice(0, 10) ? text.slice(11) : text.slice(5, 16);
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
  if (isEmitted(event)) return describeEmitted(event.data);
  return WORDS[event.type]?.(event.data ?? {}) ?? describeFact(event.data ?? {});
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
