// The output of one agent, as it is written. When a person scrolls up, what is shown stays as it is: new lines are counted.
// It is followed over the agent's lives, and anew after a lost connection, a restart of the kernel, or a start after its end for good.

import { attempts, boot, connected, findAgent, stream } from "../../core/feed.js";
import { html, keyed, render } from "../../core/html.js";
import { coloured, plain } from "./ansi.js";
import { timeOfDay, visible } from "./format.js";

const MAX_LINES = 2000;
const TAIL = 200;

/** @typedef {{at: number, stream: string, text: string, id: number}} Line */

/** Property `view`: the name of an agent. Whatever draws it draws again when the agent's row or the connection changes. */
export class Log extends HTMLElement {
  name = "";
  filter = "";
  missed = 0;
  error = "";
  /** @type {Line[]} */ lines = [];
  /** What is shown while it isn't followed. @type {{lines: Line[], missed: number}|null} */ held = null;
  /** Where the last drawing has left it, in pixels. */
  top = 0;
  lastId = 0;
  /** Of what is open, or was last. */
  opened = { connection: "", life: "", run: "" };
  /** @type {(() => void)|null} */ withdraw = null;
  pending = false;

  connectedCallback() {
    this.addEventListener("scroll", this.scrolled, { capture: true, passive: true });
    this.follow();
  }

  disconnectedCallback() {
    this.withdraw?.();
    this.withdraw = null;
  }

  /** @param {{name: string}} properties */
  set view({ name }) {
    this.name = name;
    if (this.isConnected) this.follow();
  }

  /** Open the output unless it is open, or has ended and the agent hasn't begun a life since. */
  follow() {
    const row = findAgent(this.name);
    if (!row || !connected.get()) return;
    const connection = `${attempts.get()} ${row.id}`;
    const life = row.running ? `${connection} ${row.since_ms}` : this.opened.life;
    if (connection === this.opened.connection && (this.withdraw || life === this.opened.life)) return;
    const run = boot.get();
    if (run === this.opened.run) [this.lines, this.missed] = [[], 0]; // they come again
    this.opened = { connection, life, run };
    this.open();
  }

  open() {
    this.withdraw?.();
    this.error = "";
    const withdraw = stream("LOGS", { name: this.name, tail: TAIL, follow: true }, (page) => this.add(page), (reply) => {
      if (this.withdraw === withdraw) this.withdraw = null;
      if (reply?.success === false) this.error = reply.error ?? "";
      else if (reply?.lines) this.add(reply);
      this.draw();
    });
    this.withdraw = withdraw;
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
    const { lines, missed } = this.held ?? this;
    const shown = wanted ? lines.filter((line) => plain(line.text).toLowerCase().includes(wanted)) : lines;
    const last = lines.at(-1)?.at ?? 0;
    const unseen = this.held ? this.lines.filter((line) => line.at > last).length : 0;
    render(html`<div class="log" tabindex="0" role="log" aria-label=${`output of ${this.name}`}>
        ${missed ? html`<p class="line muted"><span></span><span>${missed} lines were left out: more was written than is kept in memory</span></p>` : null}
        ${!shown.length && !this.error ? html`<p class="empty">${wanted ? "no line contains that" : "no output yet"}</p>` : null}
        ${shown.slice(-600).map((line) => keyed(line.id, html`<div class=${`line ${line.stream === "stderr" ? "error" : line.stream}`}><span class="at">${timeOfDay(line.at)}</span><span>${coloured(line.text)}</span></div>`))}
        ${this.error ? html`<p class="line error"><span></span><span>${visible(this.error)}</span></p>` : null}
      </div>
      <div class="below">
        <input class="wide-input" aria-label="search in the output" placeholder="search" .value=${this.filter} @input=${(/** @type {any} */ event) => { this.filter = event.target.value; this.draw(); }}>
        <button aria-pressed=${this.held ? "false" : "true"} @click=${this.toggle}>follow</button>
        ${unseen ? html`<button @click=${this.toggle}>${unseen} new</button>` : null}
      </div>
      ${shown.length > 600 ? html`<p class="muted">the last 600 lines; <code>agentos logs</code> has all</p>` : null}`, this);
    const box = this.querySelector(".log");
    if (!box) return;
    if (!this.held) box.scrollTop = box.scrollHeight;
    this.top = box.scrollTop;
  }

  toggle = () => {
    this.held = this.held ? null : { lines: [...this.lines], missed: this.missed };
    this.show();
  };

  scrolled = (/** @type {Event} */ event) => {
    const box = /** @type {Element} */ (event.target);
    if (!box.matches(".log") || box.scrollTop === this.top) return; // the field for the search, or what was drawn: not a person
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 8;
    if (atEnd === Boolean(this.held)) this.toggle();
  };
}
customElements.define("os-log", Log);
