// The memory that an agent may use: its bar in the tree is against this.

import { call } from "../../core/feed.js";
import { askOnce } from "../once.js";

/** @typedef {Record<string, any>} Row */

const limits = askOnce(async (/** @type {Row} */ row) => {
  const reply = await call("INSPECT", { id: row.id });
  return reply?.code === "unavailable" ? undefined : { memory: /** @type {number|null} */ (reply?.limits?.memory ?? null) };
});

/** In bytes; null while it isn't known, or if there is none. @param {Row} row of an agent */
export function memoryLimit(row) {
  return limits(`${row.id} ${row.name}`, row)?.memory ?? null;
}
