// The filter of agents: words are looked for in names; `state:failed`, `state:failed,paused`, `cpu>0.5`, `memory>100M`,
// `restarts>=3`, `supervisor:shop`; all have to hold. `-word` must not.

import { lookup } from "../../core/lookup.js";
import { cores } from "../charts/cpu.js";

/** @typedef {Record<string, any>} Row */
/** @typedef {(row: Row) => boolean} Test */

/** @type {Record<string, (row: Row) => number|null>} */
const NUMBERS = lookup({
  cpu: cores,
  memory: (row) => row.memory_bytes,
  restarts: (row) => row.restarts,
  id: (row) => row.id,
});
const TEXTS = ["state", "supervisor", "name", "isolation"];
const SIZES = { k: 1024, m: 1024 ** 2, g: 1024 ** 3 };

/** @param {string} text @returns {{test: Test, problem: string}} */
export function matcher(text) {
  let problem = "";
  const tests = text.split(/\s+/).filter(Boolean).map((word) => {
    try {
      return parseWord(word);
    } catch (error) {
      problem = /** @type {Error} */ (error).message;
      return () => true;
    }
  });
  return { test: (row) => tests.every((one) => one(row)), problem };
}

/** @param {string} word @returns {Test} */
function parseWord(word) {
  if (word.length > 1 && word[0] === "-") {
    const inner = parseWord(word.slice(1));
    return (row) => !inner(row);
  }
  const compared = /^([a-z]+)(>=|<=|>|<|=)(.*)$/.exec(word);
  if (compared) return compare(compared[1], compared[2], compared[3]);
  const [, field, wanted] = /^([a-z]+):(.*)$/.exec(word) ?? [];
  if (field) return contains(field, wanted);
  const name = word.toLowerCase();
  return (row) => row.name.toLowerCase().includes(name);
}

/** @param {string} field @param {string} wanted @returns {Test} */
function contains(field, wanted) {
  if (!TEXTS.includes(field)) throw new Error(`no field ${field}: ${TEXTS.join(", ")}, ${Object.keys(NUMBERS).join(", ")}`);
  const choices = wanted.toLowerCase().replaceAll(" ", "_").split(",").filter(Boolean);
  if (field === "state") return (row) => !choices.length || choices.some((choice) => row.state.startsWith(choice));
  return (row) => !choices.length || choices.some((choice) => String(row[field]).toLowerCase().includes(choice));
}

/** @param {string} field @param {string} sign @param {string} text @returns {Test} */
function compare(field, sign, text) {
  const value = NUMBERS[field];
  if (!value) throw new Error(`no number ${field}: ${Object.keys(NUMBERS).join(", ")}`);
  const [, digits, unit] = /^([0-9.]+)([kmg]?)b?$/i.exec(text) ?? [];
  if (!digits) throw new Error(`${field}${sign}: expected a number such as 0.5 or 100M`);
  const limit = Number(digits) * (SIZES[/** @type {"k"|"m"|"g"} */ (unit.toLowerCase())] ?? 1);
  return (row) => {
    const is = value(row);
    if (is === null || is === undefined) return false;
    return sign === ">" ? is > limit : sign === "<" ? is < limit : sign === ">=" ? is >= limit : sign === "<=" ? is <= limit : is === limit;
  };
}
