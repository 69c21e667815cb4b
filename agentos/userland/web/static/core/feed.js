// The feed: a WebSocket that brings what all pages show, and carries system calls. It reconnects by itself.

import { Entry } from "./proof.js";
import { signal } from "./signals.js";

/** @typedef {Record<string, any>} Row */
/** @typedef {{success?: boolean, code?: string, error?: string} & Record<string, any>} Reply */
/** @typedef {{onChunk?: (chunk: any) => void, resolve: (reply: Reply) => void}} Waiting */

const RETRY_MS = 1000;
const USE_MS = 60_000; // so often the kernel hears that a person uses the page
const MAX_EVENTS = 600;
const MAX_EVENTS_OF_TYPE = 150;
const RESTART_SHOWN_MS = 8000;

/** Is null before the first connection, then whether there is one. */
export const connected = signal(/** @type {boolean|null} */ (null));
export const lostAt = signal(0);
export const refusal = signal("");
/** The agents by id, changed in place. */
export const agents = signal(/** @type {Map<number, Row>} */ (new Map()));
export const kernel = signal(/** @type {Row|null} */ (null));
/** The calls that a rule has a person asked about; those whose caller is gone can only be looked at. */
export const approvals = signal(/** @type {Row[]} */ ([]));
export const events = signal(/** @type {Row[]} */ ([]));
/** What this session may do. @type {ReturnType<typeof signal<"operator"|"viewer"|"viewer-with-contents"|"approver">>} */
export const role = signal("operator");
/** Commands that the operator's pages may run on the host, by name: doctor, verify. */
export const commands = signal(/** @type {Record<string, string[]>} */ ({}));
/** Says that the kernel was started anew, for a while. */
export const restarted = signal("");

/** Which run of the kernel it is: what belongs to a former one is asked for anew. */
export const boot = signal("");
/** How often a connection was tried: the calls and streams of one end with it. */
export const attempts = signal(0);

let clockOffset = 0; // the kernel's clock minus this browser's, in milliseconds
let lastId = 0;
/** The connection, once both sides have proven themselves. @type {WebSocket|null} */
let socket = null;
/** @type {Map<number, Waiting>} */
const waiting = new Map();

/** The row of an agent. @param {string} name */
export function findAgent(name) {
  return [...agents.get().values()].find((row) => row.name === name);
}

/** Those that can be allowed still. */
export function answerable() {
  return approvals.get().filter((one) => one.caller_present);
}

/** Whether this session may read questions to the model, and the audit log. */
export function seesContents() {
  return ["operator", "viewer-with-contents"].includes(role.get());
}

/** Entries of the audit log since the kernel was started: an agent's id is of one run. @param {Row[]} entries */
export function ofThisRun(entries) {
  const begun = (kernel.peek()?.since_ms ?? 0) / 1000;
  return entries.filter((entry) => entry.at >= begun);
}

/** The kernel's time in milliseconds since the epoch. */
export function now() {
  return Date.now() + clockOffset;
}

export function connect() {
  if (!isSecureContext) return refusal.set("Over plain http from another machine this page could be read and changed on the way: forward the port with ssh -L, or use a proxy with TLS.");
  attempts.set(attempts.peek() + 1);
  const opened = new WebSocket(`${location.protocol === "https:" ? "wss:" : "ws:"}//${location.host}/feed`);
  const entry = new Entry(opened);
  opened.binaryType = "arraybuffer";
  opened.onopen = () => inOrder(() => entry.begin());
  opened.onmessage = (event) => inOrder(async () => {
    if (entry.done) return receive(JSON.parse(await textOf(event.data)));
    await entry.take(event.data);
    if (entry.done) socket = opened;
  });
  opened.onclose = (event) => inOrder(() => lose(entry, event.code, event.reason));
}

let usedAt = -Infinity;

/** Only what a person does keeps a session: a page asks by itself. @param {Event} event */
function noteUse(event) {
  if (!socket || !event.isTrusted || performance.now() - usedAt < USE_MS) return;
  usedAt = performance.now();
  socket.send(JSON.stringify({ type: "use" }));
}

for (const type of ["pointerdown", "keydown", "wheel"]) addEventListener(type, noteUse, { capture: true, passive: true });

/** The message that is being received: to decompress one takes time, and the next one waits for it. */
let last = Promise.resolve();

/** A failure is reported, and the messages after it are received. @param {() => void|Promise<void>} work */
function inOrder(work) {
  last = last.then(work).catch(reportError);
}

/** A large message is binary: its text, compressed. @param {string|ArrayBuffer} data */
function textOf(data) {
  if (typeof data === "string") return data;
  return new Response(new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
}

/** @param {Entry} entry @param {number} code @param {string} reason */
function lose(entry, code, reason) {
  socket = null;
  for (const one of waiting.values()) one.resolve(unreachable());
  waiting.clear();
  if (connected.peek() !== false) lostAt.set(Date.now());
  connected.set(false);
  const { why, again } = entry.explain(code);
  refusal.set(entry.proven && code === 4429 ? reason : why);
  if (again) setTimeout(connect, RETRY_MS);
}

/** @param {Row} message */
function receive(message) {
  if ("snapshot" in message) {
    clockOffset = message.at * 1000 - Date.now();
    showSnapshot(message.snapshot);
  } else if ("delta" in message) {
    applyDelta(message.delta);
  } else {
    receiveReply(message);
  }
}

/** @param {Row} snapshot */
function showSnapshot(snapshot) {
  agents.set(new Map(Object.entries(snapshot.agents).map(([id, row]) => [Number(id), /** @type {Row} */ (row)])));
  kernel.set(snapshot.kernel);
  approvals.set(snapshot.approvals);
  events.set(snapshot.events);
  lastEvents.clear();
  noteLast(snapshot.events);
  role.set(snapshot.role);
  commands.set(snapshot.commands ?? {});
  if (boot.peek() && boot.peek() !== snapshot.boot) sayRestarted(snapshot);
  boot.set(snapshot.boot);
  connected.set(true);
  refusal.set("");
}

/** @param {Row} snapshot */
function sayRestarted(snapshot) {
  const at = new Date(snapshot.kernel.since_ms).toLocaleTimeString([], { hour12: false });
  restarted.set(`Kernel restarted ${at}, ${Object.keys(snapshot.agents).length} agents again`);
  setTimeout(() => restarted.set(""), RESTART_SHOWN_MS);
}

/** @param {Row} delta */
function applyDelta(delta) {
  const map = agents.peek();
  for (const [key, change] of Object.entries(delta.agents ?? {})) {
    const id = Number(key);
    if (change === null) map.delete(id);
    else map.set(id, { ...map.get(id), ...change });
  }
  if (delta.agents) agents.touch();
  if (delta.kernel) kernel.set(delta.kernel);
  if (delta.approvals) approvals.set(delta.approvals);
  if (delta.events) {
    noteLast(delta.events);
    events.set(lastOf([...events.peek(), ...delta.events]));
  }
}

/** The last event of a type about an agent. @type {Map<string, Row>} */
const lastEvents = new Map();
const LAST_TYPES = ["AGENT_STATE", "AGENT_RESTARTING"];
const MAX_LAST = 4000;

/** @param {Row[]} added */
function noteLast(added) {
  for (const event of added) {
    if (!LAST_TYPES.includes(event.type)) continue;
    const key = `${event.type} ${event.data.name}`;
    lastEvents.delete(key);
    lastEvents.set(key, event);
    if (lastEvents.size > MAX_LAST) lastEvents.delete(/** @type {string} */ (lastEvents.keys().next().value));
  }
}

/** The last AGENT_STATE or AGENT_RESTARTING of an agent. Changes of its state come after it, so no signal says that it is new.
 * @param {"AGENT_STATE"|"AGENT_RESTARTING"} type @param {string} name */
export function lastEvent(type, name) {
  return lastEvents.get(`${type} ${name}`);
}

/** At most 600 events, 150 of a type: a flood of one type doesn't push out the others. @param {Row[]} all */
function lastOf(all) {
  if (all.length <= MAX_EVENTS) return all;
  /** @type {Map<string, number>} */
  const counts = new Map();
  return all.toReversed().filter((event) => {
    const count = (counts.get(event.type) ?? 0) + 1;
    counts.set(event.type, count);
    return count <= MAX_EVENTS_OF_TYPE;
  }).slice(0, MAX_EVENTS).reverse();
}

/** @param {Row} message */
function receiveReply(message) {
  const one = waiting.get(message.id);
  if (!one) return;
  if ("chunk" in message) {
    one.onChunk?.(message.chunk);
    return;
  }
  waiting.delete(message.id);
  one.resolve(message.reply);
}

function unreachable() {
  return { success: false, code: "unavailable", error: "the kernel is not reachable" };
}

/** Make a system call. The promise resolves with the reply, also with a refusal: it never rejects.
 * @param {string} name @param {Row} [args] @returns {Promise<Reply>} */
export function call(name, args = {}) {
  return send({ type: "call", call: name, args });
}

/** Make a streamed call. Returns a function that withdraws it.
 * @param {string} name @param {Row} args @param {(chunk: any) => void} onChunk @param {(reply: Reply) => void} onEnd */
export function stream(name, args, onChunk, onEnd) {
  const ended = send({ type: "call", call: name, args, stream: true }, onChunk);
  const id = lastId;
  ended.then(onEnd);
  return () => {
    if (waiting.has(id)) socket?.send(JSON.stringify({ type: "cancel", id }));
    waiting.delete(id);
  };
}

/** The browsers that are logged in. @param {string} [revoke] @returns {Promise<Reply>} */
export function sessions(revoke) {
  return send(revoke ? { type: "sessions", revoke } : { type: "sessions" });
}

/** The recorded lives; with a name the calls of one, with a call its contents. @param {Row} args @returns {Promise<Reply>} */
export function recordings(args) {
  return send({ type: "recordings", ...args });
}

/** Ask a recorded question anew; the reply is that of THINK. @param {string} name of the recording @param {number} call @param {string} model @returns {Promise<Reply>} */
export function askAgain(name, call, model) {
  return send({ type: "ask_again", name, call, model });
}

/** @param {Row} message @param {(chunk: any) => void} [onChunk] @returns {Promise<Reply>} */
function send(message, onChunk) {
  lastId += 1;
  const id = lastId;
  if (!socket || socket.readyState !== WebSocket.OPEN) return Promise.resolve(unreachable());
  const text = JSON.stringify({ ...message, id });
  return new Promise((resolve) => {
    waiting.set(id, { resolve, onChunk });
    /** @type {WebSocket} */ (socket).send(text);
  });
}
