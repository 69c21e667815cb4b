// The frame: top bar, navigation, page, panel, status line, keys. All of it is drawn again when a value it reads changes.

import "./parts/charts/chart.js";
import "./parts/text/log.js";
import "./parts/table.js";

import { answerable, connect, connected, findAgent, kernel, lostAt, refusal, restarted, role, seesContents } from "./core/feed.js";
import { html, render } from "./core/html.js";
import { lookup } from "./core/lookup.js";
import { adjust, go, link, route } from "./core/route.js";
import { effect, signal } from "./core/signals.js";
import { agentsPage } from "./pages/agents.js";
import { approvalKey, approvalsPage } from "./pages/approvals.js";
import { auditPage } from "./pages/audit.js";
import { eventsPage, toggleFollow } from "./pages/events.js";
import { logsPage } from "./pages/logs.js";
import { modelPage } from "./pages/model.js";
import { attention, overview } from "./pages/overview.js";
import { panel } from "./pages/agent/panel.js";
import { recordingsPage } from "./pages/recordings/list.js";
import { ringButton } from "./pages/ring.js";
import { systemPage } from "./pages/system.js";
import { tracePage } from "./pages/trace.js";
import { treePage } from "./pages/tree.js";
import { askAbout, asked, possible, toastList } from "./parts/actions.js";
import { asTable, zoom } from "./parts/charts/charts.js";
import { clock, elapsed, plural, visible } from "./parts/text/format.js";
import { openKeys, openPalette, singleKeys } from "./parts/palette.js";

/** @typedef {{word: string, key: string, icon: string, show: () => unknown, minor?: boolean, whole?: boolean, contents?: boolean, listed?: boolean}} Page */

/** @type {Record<string, Page>} */
const PAGES = lookup({
  overview: { word: "Overview", key: "o", icon: "M2 2h5v5H2zM9 2h5v5H9zM2 9h5v5H2zM9 9h5v5H9z", show: overview },
  agents: { word: "Agents", key: "a", icon: "M2 4h12M2 8h12M2 12h12", show: agentsPage, whole: true },
  tree: { word: "Tree", key: "t", icon: "M3 2v11h4M3 7h4M9 7h5M9 13h5M3 2h5", show: treePage, whole: true },
  trace: { word: "Trace", key: "r", icon: "M2 4h6M5 8h6M9 12h5", show: tracePage, minor: true, contents: true },
  model: { word: "Model", key: "m", icon: "M8 2v4M8 10v4M2 8h4M10 8h4M6 6h4v4H6z", show: modelPage, minor: true },
  recordings: { word: "Recordings", key: "c", icon: "M8 3a5 5 0 1 0 0 10a5 5 0 1 0 0-10M8 7v2", show: recordingsPage, minor: true, listed: true },
  approvals: { word: "Approvals", key: "p", icon: "M2 8l4 4l8-9", show: approvalsPage },
  events: { word: "Events", key: "e", icon: "M2 9h3l2-6l3 10l2-4h2", show: eventsPage, minor: true },
  logs: { word: "Logs", key: "l", icon: "M2 4h2M6 4h8M2 8h2M6 8h8M2 12h2M6 12h8", show: logsPage, minor: true, whole: true },
  audit: { word: "Audit", key: "u", icon: "M3 2h10v12H3zM5 5h6M5 8h6M5 11h4", show: auditPage, minor: true, contents: true },
  system: { word: "System", key: "s", icon: "M8 5a3 3 0 1 0 0 6a3 3 0 1 0 0-6M8 1v3M8 12v3M1 8h3M12 8h3", show: systemPage, minor: true },
});

/** Is touched when another element has the focus. */
const focusMoved = signal(null);
const root = /** @type {HTMLElement} */ (document.getElementById("frame"));
const places = /** @type {Record<string, HTMLElement>} */ (Object.fromEntries(["top", "banner", "nav", "main", "panel", "status", "toasts"].map((id) => [id, document.getElementById(id)])));

effect(() => render(topBar(), places.top));
effect(() => render(html`${banner()}`, places.banner), true);
effect(() => render(html`${navigation()}`, places.nav));
effect(() => render(html`<h1 class="hidden-text">${PAGES[route.get().page]?.word ?? "Agent"}</h1>${mainPage()}`, places.main));
effect(() => render(html`${sidePanel()}`, places.panel));
effect(() => render(statusLine(), places.status));
effect(() => render(html`${toastList()}`, places.toasts));
effect(() => root.classList.toggle("lost", connected.get() === false), true);
effect(() => {
  const waiting = attention().length;
  const news = connected.get() === false ? "lost · " : waiting ? `(${waiting}) ` : "";
  document.title = `${news}${PAGES[route.get().page]?.word ?? "Agent"} · agentos`;
}, true);
/** What had the focus before a question was asked. @type {HTMLElement|null} */
let focusedBefore = null;
effect(() => {
  if (asked.get()) {
    focusedBefore ??= /** @type {HTMLElement?} */ (document.activeElement);
    requestAnimationFrame(() => /** @type {HTMLElement?} */ (document.querySelector("[data-autofocus]"))?.focus());
  } else if (focusedBefore) {
    const back = focusedBefore.isConnected && focusedBefore !== document.body ? focusedBefore : list();
    focusedBefore = null;
    requestAnimationFrame(() => back?.focus());
  }
});

function projectName() {
  const file = kernel.get()?.config;
  if (role.get() !== "operator") return ""; // which isn't told
  return file ? file.split("/").at(file.endsWith("/agentos.toml") ? -2 : -1) : "no configuration";
}

function topBar() {
  const waiting = answerable().length;
  clock.get();
  return html`<span class="name">agentos</span><span class="project cut">${visible(projectName())}</span><span class="grow"></span>
    <button id="search" @click=${openPalette}>Search or run… <span class="hint muted">Ctrl-K</span></button>
    ${waiting ? html`<a class="info" href=${link("approvals")}>${plural(waiting, "approval")}</a>` : null}
    ${role.get() === "operator" ? null : html`<span class="chip">${role.get().replaceAll("-", " ")}</span>`}
    <span class="live">${connected.get() ? html`<span class="ok">live</span>` : connected.get() === false ? html`<span class="bad">lost</span>` : ""}</span>
    ${ringButton()}
    <button class="quiet" title="theme" aria-label="theme" @click=${switchTheme}><svg width="16" height="16" class="middle" aria-hidden="true"><circle cx="8" cy="8" r="6" fill="none" stroke="currentColor" stroke-width="1.5" /><path d="M8 2a6 6 0 0 1 0 12z" fill="currentColor" /></svg></button>`;
}

function banner() {
  if (refusal.get()) return html`<p class="banner bad-tint" role="alert">${refusal.get()} Run <code>agentos dashboard</code> for a new link.</p>`;
  if (connected.get() === false) {
    const at = new Date(lostAt.get()).toLocaleTimeString("en-GB");
    return html`<p class="banner bad-tint" role="alert">Kernel not reachable since ${at}, retrying</p>`;
  }
  return restarted.get() ? html`<p class="banner ok-tint" role="status">${restarted.get()}</p>` : null;
}

/** Those that this session may see. */
function shownPages() {
  return Object.entries(PAGES).filter(([, one]) => (!one.contents || seesContents()) && (!one.listed || role.get() !== "approver"));
}

function navigation() {
  const now = route.get().page;
  const attentive = attention().length;
  return shownPages().map(([page, { word, icon, minor }]) => {
    const count = page === "overview" ? attentive : page === "approvals" ? answerable().length : 0;
    return html`<a href=${link(page)} title=${word} class=${minor ? "minor" : ""} aria-current=${page === now ? "page" : null}>
      <svg width="16" height="16" aria-hidden="true"><path d=${icon} fill="none" stroke="currentColor" stroke-width="1.5" /></svg><span class="word">${word}</span>${count ? html`<span class="count">${count}</span>` : null}</a>`;
  }).concat(html`<a href="#/more" class="only-narrow" aria-current=${now === "more" ? "page" : null}><svg width="16" height="16" aria-hidden="true"><path d="M3 8h.1M8 8h.1M13 8h.1" stroke="currentColor" stroke-width="2.5" stroke-linecap="round" /></svg><span class="word">More</span></a>`);
}

function mainPage() {
  const { page, params } = route.get();
  places.main.classList.toggle("whole", Boolean(PAGES[page]?.whole) || page === "agent");
  places.main.classList.toggle("whole-agent", page === "agent");
  if (kernel.get() === null) return null;
  if (page === "more") return html`<div class="more-list">${shownPages().filter(([, one]) => one.minor).map(([name, one]) => html`<a class="block" href=${link(name)}>${one.word}</a>`)}</div>`;
  if (page === "agent") return params.agent ? panel(params.agent, true) : null;
  return PAGES[page] ? PAGES[page].show() : html`<p class="empty">There is no page ${visible(page)}.</p>`;
}

function sidePanel() {
  const { page, params } = route.get();
  return params.agent && page !== "agent" && kernel.get() ? panel(params.agent, false) : null;
}

function statusLine() {
  const now = kernel.get();
  if (!now) return html``;
  const model = now.model;
  const typed = lineOfFocus();
  const others = (now.attention ?? []).filter((/** @type {any} */ one) => !one.name).length;
  return html`${typed ? html`<span class="cut focused-line">${visible(typed)}</span>` : null}<span>kernel up ${elapsed(now.since_ms)}</span><span class="cut">${visible(now.isolation)}</span>
    <span class=${now.audit?.problem ? "bad" : ""}>audit ${now.audit?.problem ? "damaged" : "sound"}</span>
    <span class=${model && model.state !== "ok" ? "warn" : ""}>${model ? `model ${visible(model.model)} ${model.state}` : "no model"}</span>${others ? html`<a class="warn" href=${link("overview")}>${plural(others, "remark")}</a>` : null}`;
}

/** What one would type instead of pressing the button that has the focus; "" without one, also when it is gone. */
function lineOfFocus() {
  focusMoved.get();
  const title = document.activeElement?.closest("button")?.title ?? "";
  return title.startsWith("agentos ") ? title : "";
}

addEventListener("focusin", focusMoved.touch);

function switchTheme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = dark ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("agentos-theme", theme);
}

/** @type {Record<string, string>} */
const GO = lookup(Object.fromEntries(Object.entries(PAGES).map(([page, { key }]) => [key, page])));
let going = false;

addEventListener("keydown", (event) => {
  if (event.key === "k" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    return openPalette();
  }
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.key === "Escape") return escape(target);
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, select, textarea, dialog")) return;
  if (!singleKeys() && event.key !== "?") return;
  if (press(event) || moveInList(event)) event.preventDefault();
});

/** @param {HTMLElement} target */
function escape(target) {
  if (target.closest("dialog")) return;
  if (asked.peek()) asked.set(null);
  else if (target.matches("input")) target.blur();
  else if (route.peek().page === "agent") history.back();
  else if (route.peek().params.agent) {
    adjust({ agent: null, tab: null });
    list()?.focus();
  }
}

/** The rows of this page, which keys move in. @returns {HTMLElement?} */
function list() {
  return places.main.querySelector("[role=grid], [role=tree]");
}

/** Give a key to the rows, if it is one of theirs and the focus isn't there. @param {KeyboardEvent} event */
function moveInList(event) {
  const rows = list();
  const target = /** @type {HTMLElement} */ (event.target);
  if (!rows || rows.contains(target) || !["j", "k", "x", "ArrowDown", "ArrowUp", "Enter"].includes(event.key)) return false;
  if (event.key === "Enter" && target !== document.body && target !== places.main) return false;
  rows.focus();
  rows.dispatchEvent(new KeyboardEvent("keydown", { key: event.key, bubbles: rows.matches("table") }));
  return true;
}

/** @param {KeyboardEvent} event @returns {boolean} whether it was one of the page's keys */
function press(event) {
  const { key } = event;
  const { page, params } = route.peek();
  const wasGoing = going;
  going = key === "g" && !going;
  if (wasGoing && GO[key]) {
    go(GO[key]);
    return true;
  }
  if (page === "approvals" && approvalKey(event)) return true;
  const actions = lookup(/** @type {Record<string, () => void>} */ ({
    ":": openPalette,
    "?": openKeys,
    "/": () => document.getElementById("filter")?.focus(),
    "[": () => zoom(-1),
    "]": () => zoom(1),
    t: () => asTable.set(!asTable.peek()),
    f: () => (page === "events" ? toggleFollow() : undefined),
    l: () => params.agent && adjust({ tab: "logs" }),
    o: () => params.agent && go("agent", params),
    ".": () => /** @type {HTMLElement?} */ (document.querySelector(".panel > header .acts button"))?.focus(),
    K: () => question("kill"),
    R: () => question("restart"),
    p: () => question("pause"),
  }));
  if (!actions[key]) return false;
  actions[key]();
  return true;
}

/** Ask whether to act on the selected agent. @param {string} action */
function question(action) {
  const row = findAgent(route.peek().params.agent ?? "");
  if (!row) return;
  const chosen = action === "pause" && row.state === "paused" ? "resume" : action;
  if (possible(row).includes(chosen)) askAbout(chosen, [row.name], `panel ${row.name}`);
}

connect();
