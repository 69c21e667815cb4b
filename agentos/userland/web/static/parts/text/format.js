// Numbers, durations, times and text as people read them. Unknown is "–", never 0.

import { now } from "../../core/feed.js";
import { signal } from "../../core/signals.js";

export const UNKNOWN = "–";

/** Seconds since the page was opened: whatever shows an elapsed time reads it, so one clock serves all. */
export const clock = signal(0);
setInterval(() => clock.set(clock.peek() + 1), 1000);

const UNITS = ["B", "K", "M", "G", "T"];

/** `141M` of bytes. @param {number|null|undefined} size */
export function bytes(size) {
  if (size === null || size === undefined) return UNKNOWN;
  let unit = 0;
  let value = size;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value < 10 && unit > 0 ? value.toFixed(1) : Math.round(value)}${UNITS[unit]}`;
}

/** By digits: to make one takes longer than to format a number. @type {Intl.NumberFormat[]} */
const formats = [];

/** @param {number|null|undefined} value @param {number} [digits] */
export function number(value, digits = 0) {
  if (value === null || value === undefined) return UNKNOWN;
  formats[digits] ??= new Intl.NumberFormat("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
  return formats[digits].format(value);
}

/** `3d 4h`, `12m 5s`, `0.4s` of milliseconds. @param {number|null|undefined} ms */
export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return UNKNOWN;
  const seconds = Math.max(0, ms / 1000);
  if (seconds < 1) return seconds > 0 && seconds < 0.001 ? "<1ms" : `${Math.round(seconds * 1000)}ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.floor(seconds)}s`;
  const whole = Math.floor(seconds);
  if (whole < 3600) return two(whole, 60, "m", 1, "s");
  return whole < 86400 ? two(whole, 3600, "h", 60, "m") : two(whole, 86400, "d", 3600, "h");
}

/** `3d 4h`, or `3d` without a rest. @param {number} seconds @param {number} large @param {string} word @param {number} small @param {string} other */
function two(seconds, large, word, small, other) {
  const rest = Math.floor((seconds % large) / small);
  return `${Math.floor(seconds / large)}${word}${rest ? ` ${rest}${other}` : ""}`;
}

/** How long ago, in whole seconds, so that it changes once a second. @param {number} ms since the epoch */
export function elapsed(ms) {
  clock.get();
  const seconds = Math.max(0, Math.floor((now() - ms) / 1000));
  return seconds < 60 ? `${seconds}s` : duration(seconds * 1000);
}

/** `00:12` until a time; "" if it has passed. @param {number} seconds since the epoch */
export function countdown(seconds) {
  clock.get();
  const left = Math.ceil(seconds - now() / 1000);
  if (left <= 0) return "";
  return `${String(Math.floor(left / 60)).padStart(2, "0")}:${String(left % 60).padStart(2, "0")}`;
}

/** `3h 4m` until then. @param {number} seconds since the epoch */
export function remaining(seconds) {
  clock.get();
  return duration(Math.max(0, seconds * 1000 - now()));
}

/** `12:04:31` of seconds since the epoch. @param {number} seconds */
export function timeOfDay(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

/** The whole date and time. @param {number} seconds */
export function exactTime(seconds) {
  return new Date(seconds * 1000).toLocaleString("sv-SE");
}

/** `long-na…-name`. @param {string} text @param {number} most characters */
export function cutMiddle(text, most) {
  const half = Math.floor((most - 1) / 2);
  return text.length <= most ? text : `${text.slice(0, most - 1 - half)}…${text.slice(-half)}`;
}

// Controls, halves of pairs, what can't be seen or turns text around; but U+FE0E and U+FE0F, which only choose an emoji's form.
const UNSEEN = /(?![\ufe0e\ufe0f])[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800\u{16fe4}\u{1d159}]/gu;

/** Text of others on one line: what can't be seen, or turns text around, is shown as ‹U+202E›. @param {unknown} text */
export function visible(text) {
  return asText(text).replace(UNSEEN, (found) => (found === "\n" ? "↵" : found === "\t" ? " " : `‹U+${found.codePointAt(0)?.toString(16).toUpperCase().padStart(4, "0")}›`));
}

/** The object of an entry of the audit log, with the beginning of digests only, and without a cost that isn't known. @param {string} about */
export function readable(about) {
  return visible(about).replace(", cost null", "").replace(/(sha256:[0-9a-f]{8})[0-9a-f]{56}/g, "$1…");
}

/** As visible(), but line breaks stay. @param {unknown} text */
export function visibleLines(text) {
  return asText(text).split("\n").map(visible).join("\n");
}

/** Arrays and objects as JSON: String() of an object from outside may throw. @param {unknown} value */
function asText(value) {
  return typeof value === "object" && value !== null ? JSON.stringify(value) : String(value ?? "");
}

/** @param {number} count @param {string} word */
export function plural(count, word) {
  return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
}
