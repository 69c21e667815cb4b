// The output of agents, as it is written. When a person scrolls up, what is shown stays as it is: new lines are counted.
// That of one agent comes from the kernel's memory; it is followed over the agent's lives, and anew after a lost connection, a restart of the
// kernel, or a start after its end for good. That of several comes from the log on disk, with earlier runs of the kernel; after a lost
// connection it goes on behind the last line.

import { attempts, boot, connected, findAgent, stream } from "../../core/feed.js";
import { html, keyed, render } from "../../core/html.js";
import { shortName } from "../state.js";
import { coloured, plain } from "./ansi.js";
import { exactTime, plural, timeOfDay, visible } from "./format.js";

const MAX_LINES = 2000;
const TAIL = 200;
const SHOWN = 600; // lines
const MAX_CHARS = 2000; // of a line: where all lines are as long as the kernel keeps them, pages would stand still

/** `name` is of a log of several. @typedef {{at: number, stream: string, text: string, shown: string, id: number, name?: string}} Line */
/** Fields of LOGS: `name`, or `since` with or without `names`. @typedef {{name?: string, names?: string[], since?: number, grep?: string}} Wanted */

/** Property `view`. Whatever draws it draws again when the agent's row or the connection changes. */
export class Log extends HTMLElement {
  /** @type {Wanted} */ wanted = {};
  filter = "";
  missed = 0;
  error = "";
  /** @type {Line[]} */ lines = [];
  /** What is shown while it isn't followed. @type {{lines: Line[], missed: number}|null} */ held = null;
  /** Where the last drawing has left it, in pixels. */
  top = 0;
  lastId = 0;
  /** Those that come again, as a log goes on from their moment. @type {Set<string>} */ again = new Set();
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

  /** @param {Wanted} wanted */
  set view(wanted) {
    if (JSON.stringify(wanted) !== JSON.stringify(this.wanted)) [this.lines, this.missed, this.held, this.opened] = [[], 0, null, { connection: "", life: "", run: "" }];
    this.wanted = wanted;
    if (this.isConnected) this.follow();
  }

  /** Open the output unless it is open, or has ended and the agent hasn't begun a life since. */
  follow() {
    if (!connected.get()) return;
    if (this.wanted.name === undefined) {
      const connection = String(attempts.get());
      if (connection === this.opened.connection) return;
      this.opened = { connection, life: "", run: boot.get() };
      return this.open();
    }
    const row = findAgent(this.wanted.name);
    if (!row) return;
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
    const goesOn = this.wanted.name === undefined && this.lines.length > 0;
    const last = Math.max(...this.lines.map((line) => line.at));
    this.again = new Set(goesOn ? this.lines.filter((line) => line.at === last).map(sameness) : []);
    const from = goesOn ? { since: last } : this.wanted.since ? {} : { tail: TAIL };
    const withdraw = stream("LOGS", { ...this.wanted, ...from, follow: true }, (page) => this.add(page), (reply) => {
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
      if (this.again.delete(sameness(line))) continue;
      this.lastId += 1;
      this.lines.push({ ...line, shown: beginning(line.text), id: this.lastId });
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
    const { name } = this.wanted;
    const wanted = this.filter.toLowerCase();
    const { lines, missed } = this.held ?? this;
    const shown = wanted ? lines.filter((line) => plain(line.text).toLowerCase().includes(wanted)) : lines;
    const last = lines.at(-1)?.at ?? 0;
    const unseen = this.held ? this.lines.filter((line) => line.at > last).length : 0;
    let day = new Date().toDateString();
    const drawn = shown.slice(-SHOWN).map((line) => {
      const before = day;
      day = new Date(line.at * 1000).toDateString();
      return keyed(line.id, html`<div>${day === before ? null : html`<p class="day muted">${exactTime(line.at).slice(0, 10)}</p>`}<div class=${`line ${line.stream === "stderr" ? "error" : line.stream}`}><span class="at">${timeOfDay(line.at)}</span>${name === undefined ? html`<span class="of" title=${visible(line.name)}>${shortName(line.name ?? "")}</span>` : null}<span>${coloured(line.shown)}${line.shown.length < line.text.length ? html`<span class="muted">… ${plural(line.text.length - line.shown.length, "more character")}</span>` : null}</span></div></div>`);
    });
    render(html`<div class=${name === undefined ? "log several" : "log"} tabindex="0" role="log" aria-label=${name === undefined ? "output of several agents" : `output of ${name}`}>
        ${missed ? html`<p class="line muted"><span></span><span>${plural(missed, "line")} left out: ${name === undefined ? "no longer kept, or not written" : "more was written than is kept in memory"}</span></p>` : null}
        ${!shown.length && !this.error ? html`<p class="empty">${wanted ? "no line contains that" : "no output yet"}</p>` : null}
        ${drawn}
        ${this.error ? html`<p class="line error"><span></span><span>${visible(this.error)}</span></p>` : null}
      </div>
      <div class="below">
        <input class="wide-input" aria-label="search in the output" placeholder="search" .value=${this.filter} @input=${(/** @type {any} */ event) => { this.filter = event.target.value; this.draw(); }}>
        <button aria-pressed=${this.held ? "false" : "true"} @click=${this.toggle}>follow</button>
        ${unseen ? html`<button @click=${this.toggle}>${unseen} new</button>` : null}
      </div>
      ${shown.length > SHOWN ? html`<p class="muted">the last ${SHOWN} lines; <code>agentos logs</code> has all</p>` : null}`, this);
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

/** As much of a line as is shown: what can't be seen of it takes eight characters each. @param {string} text */
function beginning(text) {
  let kept = text.slice(0, MAX_CHARS);
  while (visible(kept).length > 2 * MAX_CHARS) kept = kept.slice(0, kept.length / 2);
  return kept;
}

/** What tells a line from others. @param {Line} line */
function sameness({ at, name, stream, text }) {
  return JSON.stringify([at, name, stream, text]);
}

customElements.define("os-log", Log);
