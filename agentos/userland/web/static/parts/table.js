// A table of any length: only the rows in view are in the document.

import { html, keyed, render } from "../core/html.js";
import { fresh } from "./fresh.js";

/** @typedef {Record<string, any>} Row */
/** @typedef {{name: string, title: string, width?: string, numeric?: boolean, sort?: (row: Row) => any, least?: number, fresh?: (row: Row) => unknown, cell: (row: Row) => unknown}} Column */

const byNumber = new Intl.Collator("en", { numeric: true }); // worker-2 before worker-10
const BESIDE = 10; // rows kept above and below the view
const coarse = matchMedia("(pointer: coarse)");

/** Properties, set together as `view`: columns, rows, sort ("name" or "-name"), key(row), selected, marked, onsort(name), onpick(key, open), onmark(keys).
 * A row is described anew when it is another object, or `stamp`, `columns` or its marks have changed: scrolling is cheap. */
export class Table extends HTMLElement {
  /** @type {Column[]} */ columns = [];
  /** @type {Row[]} */ rows = [];
  sort = "";
  stamp = 0;
  /** @type {WeakMap<Row, {seen: unknown[], template: import("../core/html.js").Template}>} */ described = new WeakMap();
  label = "";
  shownFirst = 0;
  /** @type {(row: Row) => string} */ key = (row) => String(row.id);
  /** @type {string|null} */ selected = null;
  /** @type {Set<string>|null} */ marked = null;
  /** @type {((sort: string) => void)|null} */ onsort = null;
  /** @type {((key: string, open: boolean) => void)|null} */ onpick = null;
  /** @type {((keys: Set<string>) => void)|null} */ onmark = null;

  connectedCallback() {
    this.classList.add("table", "block");
    this.addEventListener("scroll", this.follow, { passive: true });
    this.addEventListener("keydown", this.press);
    this.watcher = new ResizeObserver(this.show);
    this.watcher.observe(this);
    this.show();
  }

  disconnectedCallback() {
    this.watcher?.disconnect();
  }

  /** Set several properties and show them. @param {Partial<Table>} properties */
  set view(properties) {
    Object.assign(this, properties);
    if (this.isConnected) this.show();
  }

  get rowHeight() {
    return coarse.matches ? 44 : 28;
  }

  /** The first row to be in the document. */
  get first() {
    return Math.max(0, Math.floor(this.scrollTop / this.rowHeight) - BESIDE);
  }

  /** Show other rows once others are in view. */
  follow = () => {
    if (this.first !== this.shownFirst) this.show();
  };

  /** Show what is in view now. Called by the page after it has set the properties, once per frame. */
  show = () => {
    const height = this.rowHeight;
    const first = this.first;
    this.shownFirst = first;
    const count = Math.ceil(this.clientHeight / height) + 2 * BESIDE;
    const shown = this.rows.slice(first, first + count);
    const below = Math.max(0, this.rows.length - first - shown.length);
    const width = this.columns.length + (this.marked ? 1 : 0);
    render(html`<table role="grid" tabindex="0" aria-activedescendant=${shown.some((row) => this.key(row) === this.selected) ? `row-${this.selected}` : null} aria-label=${this.label} aria-rowcount=${this.rows.length + 1}>
      <thead><tr>${this.marked ? this.markAll() : null}${this.columns.map((column) => this.header(column))}</tr></thead>
      <tbody>
        <tr class="spacer" aria-hidden="true"><td colspan=${width} .style=${`height:${first * height}px`}></td></tr>
        ${shown.map((row, index) => keyed(this.key(row), this.line(row, first + index)))}
        <tr class="spacer" aria-hidden="true"><td colspan=${width} .style=${`height:${below * height}px`}></td></tr>
      </tbody></table>`, this);
  };

  markAll() {
    const all = this.rows.length > 0 && this.rows.every((row) => this.marked?.has(this.key(row)));
    return html`<th class="marks"><label><input type="checkbox" aria-label="select all" .checked=${all}
      @change=${() => this.onmark?.(new Set(all ? [] : this.rows.map(this.key)))}></label></th>`;
  }

  /** @param {Column} column */
  header(column) {
    const active = this.sort.replace("-", "") === column.name;
    const direction = active ? (this.sort[0] === "-" ? "descending" : "ascending") : null;
    return html`<th scope="col" class=${column.numeric ? "number" : ""} aria-sort=${direction} .style=${column.width ? `width:${column.width}` : ""}>
      ${column.sort ? html`<button @click=${() => this.onsort?.(active && this.sort[0] !== "-" ? `-${column.name}` : column.name)}>${column.title}${active ? (this.sort[0] === "-" ? " ▾" : " ▴") : ""}</button>` : column.title}
    </th>`;
  }

  /** @param {Row} row @param {number} index */
  line(row, index) {
    const key = this.key(row);
    const seen = [this.stamp, this.columns, index, key === this.selected, this.marked?.has(key)];
    const before = this.described.get(row);
    if (before && seen.every((one, at) => one === before.seen[at])) return before.template;
    const template = this.describe(row, key, index);
    this.described.set(row, { seen, template });
    return template;
  }

  /** @param {Row} row @param {string} key @param {number} index */
  describe(row, key, index) {
    const mark = this.marked
      ? html`<td class="marks" @click=${(/** @type {Event} */ event) => event.stopPropagation()}><label><input type="checkbox" tabindex="-1" aria-label=${`select ${row.name}`} .checked=${this.marked.has(key)} @change=${() => this.toggle(key)}></label></td>`
      : null;
    return html`<tr id=${`row-${key}`} aria-rowindex=${index + 2} aria-selected=${key === this.selected ? "true" : "false"} @click=${() => this.onpick?.(key, false)} @dblclick=${() => this.onpick?.(key, true)}>
      ${mark}${this.columns.map((column) => html`<td class=${`${column.numeric ? "number" : ""} ${column.fresh ? fresh(`${key} ${column.name}`, column.fresh(row)) : ""}`}>${column.cell(row)}</td>`)}
    </tr>`;
  }

  /** @param {string} key */
  toggle(key) {
    const marked = new Set(this.marked);
    if (!marked.delete(key)) marked.add(key);
    this.onmark?.(marked);
  }

  press = (/** @type {KeyboardEvent} */ event) => {
    if (/** @type {Element} */ (event.target).localName !== "table" || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.rows.findIndex((row) => this.key(row) === this.selected);
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 15, PageUp: -15, Home: -1e9, End: 1e9 }[event.key];
    if (step !== undefined && this.rows.length) {
      const next = Math.max(0, Math.min(this.rows.length - 1, at < 0 && step < this.rows.length ? 0 : at + step));
      this.onpick?.(this.key(this.rows[next]), false);
      this.reveal(next);
    } else if (event.key === "x" && at >= 0 && this.marked) {
      this.toggle(this.key(this.rows[at]));
    } else if ((event.key === "Enter" || event.key === "o") && at >= 0) {
      this.onpick?.(this.key(this.rows[at]), event.key === "o");
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  };

  /** @param {number} index */
  reveal(index) {
    const height = this.rowHeight;
    const top = index * height;
    if (top < this.scrollTop) this.scrollTop = top;
    else if (top + 2 * height > this.scrollTop + this.clientHeight) this.scrollTop = top + 2 * height - this.clientHeight;
  }
}
customElements.define("os-table", Table);

/** Rows in the order of `sort`, unknown values last. @param {Row[]} rows @param {Column[]} columns @param {string} sort */
export function sortRows(rows, columns, sort) {
  const value = columns.find((column) => column.name === sort.replace("-", ""))?.sort;
  if (!value) return rows;
  const sign = sort[0] === "-" ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (a === b) return 0;
    if (a === null || a === undefined) return 1;
    if (b === null || b === undefined) return -1;
    return sign * (typeof a === "string" && typeof b === "string" ? byNumber.compare(a, b) : a < b ? -1 : 1);
  });
}
