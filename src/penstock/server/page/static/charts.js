// Small charts of the last 60 seconds. One column is one second; the newest is at the right.

import { draw, make } from "./dom.js";

const SECONDS = 60;
const HEIGHT = 32;

/**
 * A chart. `kind` is "columns" for what is counted in each second, "levels" for what is so at its end, "dots" for what is
 * not measured in every second. `say` puts a value into words.
 */
export class Chart {
  constructor(place, label, kind, say) {
    this.label = label;
    this.kind = kind;
    this.say = say;
    this.values = [];
    this.shape = draw("path", { class: kind });
    this.edge = draw("path", { class: "edge" });
    this.limit = draw("path", { class: "limit" });
    this.svg = draw(
      "svg",
      { viewBox: `0 0 ${SECONDS} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
      this.shape,
      this.edge,
      this.limit,
    );
    this.top = make("span", { class: "top-value" });
    this.readout = make("span", {});
    this.figure = make(
      "figure",
      { class: "chart" },
      this.svg,
      make("figcaption", {}, make("span", {}, "60 s ago"), this.readout, this.top),
    );
    this.figure.addEventListener("pointermove", (event) => this.point(event));
    this.figure.addEventListener("pointerleave", () => this.tell(null));
    place.append(this.figure);
  }

  /** Draw values, the newest last; null is a second in which nothing was measured. `limit` is drawn as a line. */
  show(values, limit = null) {
    this.values = values;
    const measured = values.filter((value) => value !== null);
    const most = Math.max(...measured, limit ?? 0, 0);
    const high = (value) => (most > 0 ? HEIGHT - 1 - (value / most) * (HEIGHT - 3) : HEIGHT - 1);
    const first = SECONDS - values.length;
    const parts = { columns: this.columns, levels: this.levels, dots: this.dots }[this.kind](values, first, high);
    this.shape.setAttribute("d", parts.shape);
    this.edge.setAttribute("d", parts.edge);
    this.limit.setAttribute("d", limit === null ? "" : `M0 ${high(limit)}H${SECONDS}`);
    this.top.textContent = measured.length ? `most ${this.say(Math.max(...measured))}` : "nothing measured";
    const newest = values.at(-1);
    this.svg.setAttribute(
      "aria-label",
      `${this.label}, last 60 seconds: ${this.top.textContent}` +
        (newest === null || newest === undefined ? "" : `, now ${this.say(newest)}`),
    );
  }

  columns(values, first, high) {
    const each = values.map((value, index) =>
      value > 0 ? `M${first + index + 0.14} ${HEIGHT}V${high(value).toFixed(2)}h.72V${HEIGHT}z` : "",
    );
    return { shape: each.join(""), edge: "" };
  }

  levels(values, first, high) {
    if (!values.length) return { shape: "", edge: "" };
    const steps = values.map((value, index) => `${index ? "V" : "M" + first + " "}${high(value).toFixed(2)}h1`).join("");
    return { shape: `${steps}V${HEIGHT}H${first}z`, edge: steps };
  }

  dots(values, first, high) {
    const each = values.map((value, index) =>
      value === null ? "" : `M${first + index + 0.1} ${high(value).toFixed(2)}h.8`,
    );
    return { shape: "", edge: each.join("") };
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const index = Math.floor(((event.clientX - box.left) / box.width) * SECONDS);
    this.tell(index >= 0 && index < SECONDS ? index : null);
  }

  tell(index) {
    const value = index === null ? undefined : this.values[index - (SECONDS - this.values.length)];
    const ago = SECONDS - 1 - index;
    this.readout.textContent =
      value === undefined || value === null ? "" : `${ago ? `${ago} s ago` : "now"}: ${this.say(value)}`;
  }
}

const DECADES = 5;
const LEAST = 0.001;

/** Where p50, p95 and p99 lie between 1 ms and 100 s, in a logarithmic scale, with the limit that they have. */
export function strip(quantiles, limit) {
  const at = (seconds) => Math.min(Math.max((Math.log10(seconds / LEAST) / DECADES) * 100, 0), 100);
  const marks = [1, 2, 3, 4].map((decade) => draw("path", { class: "decade", d: `M${decade * 20} 0v12` }));
  if (limit !== null) marks.push(draw("path", { class: "limit", d: `M${at(limit)} 0v12` }));
  if (quantiles.p50 !== null) {
    const [low, mid, high] = [quantiles.p50, quantiles.p95, quantiles.p99].map(at);
    marks.push(draw("path", { class: "range", d: `M${low} 6H${high}` }));
    marks.push(draw("path", { class: "range strong", d: `M${low} 6H${mid}` }));
    marks.push(draw("path", { class: "median", d: `M${low} 2v8` }));
  }
  return draw("svg", { viewBox: "0 0 100 12", preserveAspectRatio: "none", "aria-hidden": "true" }, ...marks);
}
