// The output of one agent or of the kernel, as it is written. Following stops when a person scrolls up.

import { stream } from "../core/feed.js";
import { html, keyed, render } from "../core/html.js";
import { coloured, plain } from "./ansi.js";
import { timeOfDay, visible } from "./format.js";

const MAX_LINES = 2000;
const TAIL = 200;

/** Properties, set together as `view`: name of an agent, or "kernel". */
export class Log extends HTMLElement {
  name = "";
  filter = "";
  following = true;
  unseen = 0;
  missed = 0;
  error = "";
  /** @type {{at: number, stream: string, text: string, id: number}[]} */ lines = [];
  lastId = 0;
  /** @type {(() => void)|null} */ withdraw = null;
  pending = false;

  connectedCallback() {
    this.addEventListener("scroll", this.scrolled, { capture: true, passive: true });
    this.open();
  }

  disconnectedCallback() {
    this.withdraw?.();
    this.withdraw = null;
  }

  /** @param {{name: string}} properties */
  set view({ name }) {
    const changed = name !== this.name;
    this.name = name;
    if (changed && this.isConnected) this.open();
  }

  open() {
    this.withdraw?.();
    this.lines = [];
    this.error = "";
    if (!this.name) return;
    const args = this.name === "kernel" ? { tail: TAIL, follow: true } : { name: this.name, tail: TAIL, follow: true };
    this.withdraw = stream("LOGS", args, (page) => this.add(page), (reply) => {
      if (reply?.success === false) this.error = reply.error ?? "";
      else if (reply?.lines) this.add(reply);
      this.draw();
    });
    this.draw();
  }

  /** @param {any} page */
  add(page) {
    this.missed += page.missed ?? 0;
    for (const line of page.lines) {
      this.lastId += 1;
      this.lines.push({ ...line, id: this.lastId });
    }
    if (this.lines.length > MAX_LINES) this.lines = this.lines.slice(-MAX_LINES);
    if (!this.following) this.unseen += page.lines.length;
    this.draw();
  }

  /** Once per frame, however many lines came. */
  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.show();
    });
  }

  show() {
    const wanted = this.filter.toLowerCase();
    const shown = wanted ? this.lines.filter((line) => plain(line.text).toLowerCase().includes(wanted)) : this.lines;
    render(html`<div class="log" tabindex="0" role="log" aria-label=${`output of ${this.name}`}>
        ${this.missed ? html`<p class="line muted"><span></span><span>${this.missed} lines were left out: more was written than is kept in memory</span></p>` : null}
        ${this.error ? html`<p class="line error"><span></span><span>${visible(this.error)}</span></p>` : null}
        ${!shown.length && !this.error ? html`<p class="empty">${wanted ? "no line contains that" : "no output yet"}</p>` : null}
        ${shown.slice(-600).map((line) => keyed(line.id, html`<div class=${`line ${line.stream === "stderr" ? "error" : line.stream}`}><span class="at">${timeOfDay(line.at)}</span><span>${coloured(line.text)}</span></div>`))}
      </div>
      <div class="below">
        <input class="wide-input" aria-label="search in the output" placeholder="search" .value=${this.filter} @input=${(/** @type {any} */ event) => { this.filter = event.target.value; this.draw(); }}>
        <button aria-pressed=${this.following ? "true" : "false"} @click=${this.toggle}>follow</button>
        ${this.unseen ? html`<button @click=${this.toggle}>${this.unseen} new</button>` : null}
      </div>
      ${shown.length > 600 ? html`<p class="muted">the last 600 lines; <code>agentos logs</code> has all</p>` : null}`, this);
    const box = this.querySelector(".log");
    if (box && this.following) box.scrollTop = box.scrollHeight;
  }

  toggle = () => {
    this.following = !this.following;
    this.unseen = 0;
    this.show();
  };

  scrolled = (/** @type {Event} */ event) => {
    const box = /** @type {Element} */ (event.target);
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 8;
    if (atEnd === this.following) return;
    this.following = atEnd;
    if (atEnd) this.unseen = 0;
    this.draw();
  };
}
customElements.define("os-log", Log);
