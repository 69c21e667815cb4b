// Line charts on canvas: up to four series with direct labels, a dashed line at a limit, gaps where nothing is known.

import { signal, effect } from "../../core/signals.js";

/** @typedef {{name: string, values: (number|null)[], colour?: string}} Series */
/** @typedef {{at: number[], seconds: number, series: Series[], limit?: number|null, restarts?: number[], spark?: boolean, format: (value: number) => string, label: string}} Drawing */

const COLOURS = ["--info", "--accent", "--warn", "--idle"];
const GAP_SECONDS = 12; // the kernel samples every five: in between the agent did not run
const PAD = { left: 4, right: 4, top: 4, bottom: 4 };
const LABEL = 12; // pixels from one label to the next
/** The time under the pointer, on all charts of a page. */
export const crosshair = signal(/** @type {number|null} */ (null));

export class Chart extends HTMLElement {
  /** @type {Drawing|null} */ drawing = null;

  connectedCallback() {
    this.setAttribute("role", "img");
    this.canvas = document.createElement("canvas");
    this.replaceChildren(this.canvas);
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this);
    this.addEventListener("pointermove", this.point);
    this.addEventListener("pointerleave", () => crosshair.set(null));
    this.end = effect(() => {
      crosshair.get();
      this.draw();
    });
  }

  disconnectedCallback() {
    this.watcher?.disconnect();
    this.end?.();
  }

  /** @param {Drawing} drawing */
  set view(drawing) {
    this.drawing = drawing;
    this.setAttribute("aria-label", drawing.label);
    this.draw();
  }

  point = (/** @type {PointerEvent} */ event) => {
    const drawing = this.drawing;
    if (!drawing?.at.length) return;
    const { left, width } = this.getBoundingClientRect();
    const share = (event.clientX - left - PAD.left) / (width - PAD.left - PAD.right);
    crosshair.set(drawing.at[drawing.at.length - 1] - (1 - Math.max(0, Math.min(1, share))) * drawing.seconds);
  };

  draw() {
    const canvas = this.canvas;
    const drawing = this.drawing;
    if (!canvas || !drawing) return;
    const [width, height] = [this.clientWidth, this.clientHeight];
    if (!width || !height) return;
    const scale = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    const plot = new Plot(context, width, height, drawing, getComputedStyle(this));
    plot.frame();
    plot.limit();
    plot.restarts();
    drawing.series.forEach((series, index) => plot.line(series, series.colour ?? COLOURS[index]));
    if (drawing.series.length > 1) plot.names();
    plot.crosshair(crosshair.peek());
  }
}
customElements.define("os-chart", Chart);

/** Labels from the top down, at least `each` pixels apart, and none below `bottom`. @template {{y: number}} T @param {T[]} labels @param {number} each @param {number} bottom @returns {T[]} */
export function spread(labels, each, bottom) {
  const sorted = labels.toSorted((one, other) => one.y - other.y);
  let least = each;
  return sorted.map((label, index) => {
    const y = Math.min(Math.max(label.y, least), bottom - each * (sorted.length - 1 - index));
    least = y + each;
    return { ...label, y };
  });
}

class Plot {
  /** @param {CanvasRenderingContext2D} context @param {number} width @param {number} height @param {Drawing} drawing @param {CSSStyleDeclaration} style */
  constructor(context, width, height, drawing, style) {
    this.context = context;
    this.width = width;
    this.height = height;
    this.drawing = drawing;
    this.style = style;
    const known = drawing.series.flatMap((series) => series.values.filter((value) => value !== null));
    this.peak = Math.max(0, ...known.map(Number));
    this.most = Math.max(drawing.limit ?? 0, this.peak, 1e-9) * (drawing.limit ? 1.02 : 1.2);
    this.last = drawing.at[drawing.at.length - 1] ?? 1;
    this.first = this.last - drawing.seconds; // the whole window, whatever part of it is known
    context.font = `11px ${style.fontFamily}`;
  }

  /** @param {string} name */
  colour(name) {
    return this.style.getPropertyValue(name);
  }

  /** @param {number} at */
  x(at) {
    const span = Math.max(1e-9, this.last - this.first);
    return PAD.left + ((at - this.first) / span) * (this.width - PAD.left - PAD.right);
  }

  /** @param {number} value */
  y(value) {
    return this.height - PAD.bottom - (value / this.most) * (this.height - PAD.top - PAD.bottom);
  }

  frame() {
    const { context } = this;
    context.strokeStyle = this.colour("--line");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(PAD.left, this.height - PAD.bottom + 0.5);
    context.lineTo(this.width - PAD.right, this.height - PAD.bottom + 0.5);
    context.stroke();
  }

  /** The limit as a dashed line with its value; without one the highest value alone. */
  limit() {
    const { context, drawing } = this;
    if (!drawing.limit) {
      context.fillStyle = this.colour("--muted");
      if (this.peak > 0) context.fillText(`peak ${drawing.format(this.peak)}`, PAD.left + 2, 12);
      return;
    }
    const y = Math.round(this.y(drawing.limit)) + 0.5;
    context.strokeStyle = this.colour("--warn");
    context.setLineDash([4, 4]);
    context.beginPath();
    context.moveTo(PAD.left, y);
    context.lineTo(this.width - PAD.right, y);
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = this.colour("--warn");
    context.fillText(drawing.format(drawing.limit), PAD.left + 2, y + 12);
  }

  /** Ticks on the x axis where a life began after another. */
  restarts() {
    const { context, drawing } = this;
    context.strokeStyle = this.colour("--warn");
    context.lineWidth = 1.5;
    context.beginPath();
    for (const at of drawing.restarts ?? []) {
      if (at < this.first || at > this.last) continue;
      const x = Math.round(this.x(at)) + 0.5;
      context.moveTo(x, this.height - PAD.bottom + 1);
      context.lineTo(x, this.height - PAD.bottom - 7);
    }
    context.stroke();
  }

  /** @param {Series} series @param {string} colour */
  line(series, colour) {
    const { context, drawing } = this;
    for (const points of this.pieces(series)) {
      context.beginPath();
      context.moveTo(points[0][0], points[0][1]);
      for (const [x, y] of points) context.lineTo(x, y);
      if (points.length === 1) context.lineTo(points[0][0] + 0.5, points[0][1]); // one value alone is a dot
      context.strokeStyle = context.fillStyle = this.colour(colour);
      context.lineWidth = 1.5;
      context.stroke();
      if (!drawing.spark) continue;
      context.lineTo(points[points.length - 1][0], this.height - PAD.bottom);
      context.lineTo(points[0][0], this.height - PAD.bottom);
      context.globalAlpha = 0.08;
      context.fill();
      context.globalAlpha = 1;
    }
  }

  /** The name of each series at its last value, or before its first one, where no line is, if there is room. */
  names() {
    const { context, drawing } = this;
    const known = (/** @type {number|null|undefined} */ value) => value !== null && value !== undefined;
    const names = drawing.series.map((series, index) => {
      const line = this.y(series.values.findLast(known) ?? 0);
      return { text: series.name, colour: series.colour ?? COLOURS[index], y: line < LABEL + 4 ? line + LABEL : line - 4 };
    });
    const firsts = drawing.series.map(({ values }) => values.findIndex(known)).filter((index) => index >= 0);
    const begin = Math.min(...firsts.map((index) => this.x(drawing.at[index]))) - 6;
    const widest = Math.max(...names.map(({ text }) => context.measureText(text).width));
    const right = this.width - PAD.right - 2;
    context.textAlign = "right";
    for (const { text, colour, y } of spread(names, LABEL, this.height - PAD.bottom - 2)) {
      context.fillStyle = this.colour(colour);
      context.fillText(text, begin > this.width / 2 + widest ? Math.min(right, begin) : right, y);
    }
    context.textAlign = "left";
  }

  /** The points of a series, in pieces between gaps. @param {Series} series */
  pieces(series) {
    const { at } = this.drawing;
    /** @type {[number, number][][]} */
    const pieces = [];
    let open = false;
    series.values.forEach((value, index) => {
      if (value === null || value === undefined) {
        open = false;
        return;
      }
      if (!open || at[index] - at[index - 1] > GAP_SECONDS) pieces.push([]);
      pieces[pieces.length - 1].push([this.x(at[index]), this.y(value)]);
      open = true;
    });
    return pieces;
  }

  /** @param {number|null} at */
  crosshair(at) {
    const { context, drawing } = this;
    if (at === null || !drawing.at.length || at < this.first || at > this.last) return;
    let index = drawing.at.findIndex((time) => time >= at);
    if (index < 0) index = drawing.at.length - 1;
    const x = Math.round(this.x(drawing.at[index])) + 0.5;
    context.strokeStyle = this.colour("--control");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, this.height);
    context.stroke();
    const texts = drawing.series.map((series) => `${drawing.series.length > 1 ? `${series.name} ` : ""}${series.values[index] === null ? "–" : drawing.format(Number(series.values[index]))}`);
    const text = `${new Date(drawing.at[index] * 1000).toLocaleTimeString("en-GB")}  ${texts.join("  ")}`;
    const wide = context.measureText(text).width;
    const begin = Math.min(Math.max(PAD.left, x + 4), this.width - wide - PAD.right);
    context.fillStyle = this.colour("--surface");
    context.fillRect(begin - 2, 0, wide + 4, LABEL + 3); // other labels may be there
    context.fillStyle = this.colour("--text");
    context.fillText(text, begin, 12);
  }
}
