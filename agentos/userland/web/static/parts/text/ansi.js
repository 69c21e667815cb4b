// Output of programs: colours of the terminal become classes, all other control sequences are left out.

import { html } from "../../core/html.js";
import { visible } from "./format.js";

const SEQUENCE = /\u001b(?:\[([0-9;?]*)[ -/]*([@-~])|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[()][0-9A-B]|[=>78cDEHM])/g;
const MAX_PARTS = 50; // of a line: one whose every letter has another colour would take a page's whole time
const COLOURS = ["muted", "bad", "ok", "warn", "info", "info", "info", ""];

/** The same text without any. @param {string} text */
export function plain(text) {
  return text.replace(SEQUENCE, "");
}

/** The parts of one line, each in its colour; of a line with too many one, in none. @param {string} text @returns {unknown[]} */
export function coloured(text) {
  if (!text.includes("\u001b")) return [visible(text)];
  /** @type {unknown[]} */
  const parts = [];
  let colour = "";
  let bold = false;
  let from = 0;
  /** @param {number} to */
  const add = (to) => {
    const part = text.slice(from, to);
    if (part && parts.length <= MAX_PARTS) parts.push(colour || bold ? html`<span class=${`${colour}${bold ? " bold" : ""}`}>${visible(part)}</span>` : visible(part));
  };
  for (const found of text.matchAll(SEQUENCE)) {
    add(found.index);
    from = found.index + found[0].length;
    if (found[2] !== "m") continue;
    for (const code of (found[1] || "0").split(";").map(Number)) {
      if (code === 0) [colour, bold] = ["", false];
      else if (code === 1) bold = true;
      else if (code === 22) bold = false;
      else if (code === 39) colour = "";
      else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) colour = COLOURS[code % 10];
      else if (code === 38 || code === 48) break; // of 256 colours, or of three bytes: none of ours
    }
  }
  add(text.length);
  return parts.length > MAX_PARTS ? [visible(plain(text))] : parts;
}
