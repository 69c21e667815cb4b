// Agents: a table of all; a filter in words; several are marked and acted on at once.

import { agents } from "../core/feed.js";
import { html } from "../core/html.js";
import { adjust, link, route } from "../core/route.js";
import { signal } from "../core/signals.js";
import { ACTIONS, actionButton, asked, confirmation } from "../parts/actions.js";
import { cores } from "../parts/charts/cpu.js";
import { bytes, clock, number, plural, visible } from "../parts/text/format.js";
import { openSpawn } from "../parts/forms.js";
import { matcher } from "../parts/text/filter.js";
import { shortName, stateTag, urgency } from "../parts/state.js";
import { sortRows } from "../parts/table.js";
import { begun, reason, since } from "./overview.js";

/** @typedef {Record<string, any>} Row */

const marked = signal(/** @type {Set<string>} */ (new Set()));

/** @type {import("../parts/table.js").Column[]} */
const COLUMNS = [
  { name: "name", title: "Name", width: "22%", sort: (row) => row.name, cell: (row) => shortName(row.name) },
  { name: "state", fresh: (row) => row.state, title: "State", width: "130px", sort: (row) => urgency(row), cell: (row) => stateTag(row.state) },
  { name: "for", least: 420, title: "For", width: "84px", numeric: true, sort: (row) => -(begun(row) ?? 0), cell: (row) => since(row).replace("starts ", "") },
  { name: "cpu", least: 480, title: "CPU", width: "64px", numeric: true, sort: (row) => cores(row), cell: (row) => row.running ? number(cores(row), 2) : "–" },
  { name: "memory", title: "Memory", width: "72px", numeric: true, sort: (row) => row.running ? row.memory_bytes : null, cell: (row) => row.running ? bytes(row.memory_bytes) : "–" },
  { name: "restarts", least: 560, fresh: (row) => row.restarts, title: "Restarts", width: "84px", numeric: true, sort: (row) => row.restarts, cell: (row) => number(row.restarts) },
  { name: "supervisor", least: 900, title: "Supervisor", width: "16%", sort: (row) => row.supervisor, cell: (row) => visible(row.supervisor) },
  { name: "reason", least: 760, title: "Last end", sort: (row) => row.end, cell: (row) => (row.end || row.stopped_by || row.health ? reason(row) : "") },
];
const NARROW = 640; // pixels

/** The columns that fit into a width: the same array as long as that stays. */
let fitting = { width: -1, columns: COLUMNS };

export function agentsPage() {
  const { params } = route.get();
  const all = [...agents.get().values()];
  const { test, problem } = matcher(params.filter ?? "");
  const width = document.getElementById("main")?.clientWidth ?? innerWidth;
  if (fitting.width !== width) fitting = { width, columns: COLUMNS.filter((column) => (column.least ?? 0) <= width).map((column) => (column.name === "name" && width < NARROW ? { ...column, width: undefined } : column)) };
  const sort = params.sort ?? "state"; // what needs attention first
  const rows = sortRows(sortRows(all.filter(test), COLUMNS, "name"), COLUMNS, sort);
  const names = rows.filter((row) => marked.get().has(row.name)).map((row) => row.name);
  return html`
    <div class="toolbar">
      <label class="grow"><span class="hidden-text">filter</span><input id="filter" placeholder="filter: name state:failed cpu>0.5 memory>100M" .value=${params.filter ?? ""}
        @input=${(/** @type {any} */ event) => adjust({ filter: event.target.value || null }, true)}></label>
      <span class="muted">${problem || (rows.length === all.length ? plural(all.length, "agent") : `${rows.length} of ${plural(all.length, "agent")}`)}</span>
      <button title="agentos spawn NAME COMMAND…" @click=${openSpawn}>spawn…</button>
    </div>
    ${names.length ? html`<div class="toolbar" role="group" aria-label="act on the marked agents"><span>${plural(names.length, "agent")} marked:</span>
      ${Object.keys(ACTIONS).map((action) => actionButton(action, names, "agents"))}
      <a class="button" href=${link("logs", { of: names.join(",") })}>logs</a>
      <button class="quiet" @click=${() => marked.set(new Set())}>none</button></div>` : null}
    ${asked.get()?.place === "agents" ? confirmation("agents") : null}
    ${all.length ? html`<os-table .view=${{
        label: "agents", stamp: clock.get(), columns: fitting.columns, rows, key: (/** @type {Row} */ row) => row.name, sort, selected: params.agent ?? null, marked: marked.get(),
        onsort: (/** @type {string} */ sort) => adjust({ sort }, true),
        onpick: (/** @type {string} */ name, /** @type {boolean} */ open) => (open ? (location.hash = `#/agent?agent=${encodeURIComponent(name)}`) : adjust({ agent: name }, Boolean(params.agent))),
        onmark: (/** @type {Set<string>} */ keys) => marked.set(keys),
      }}></os-table>` : html`<p class="empty">No agents yet. <code>agentos spawn worker.py</code></p>`}`;
}
