// A chart of days, whose columns are stacked from what each of several names had on a day.

import { draw, make } from "./dom.js";

const HEIGHT = 100;
const TICKS = 4;

/** The class of a name's colour, by its place; null, for all others, has one of its own. */
export const colour = (name, place) => (name === null ? "series rest" : `series series-${place}`);

export class Columns {
  /** `days` are dates; `series` are { name, values }, a value for each day; `say` puts a value into words. */
  constructor({ label, days, series, say }) {
    Object.assign(this, { days, series, say });
    this.sums = days.map((_, day) => series.reduce((sum, { values }) => sum + values[day], 0));
    const step = niceStep(Math.max(...this.sums) / TICKS);
    this.top = step * Math.max(1, Math.ceil(Math.max(...this.sums) / step - 1e-9));
    this.pointed = null;
    this.mark = draw("rect", { class: "mark", y: 0, width: 1, height: HEIGHT, visibility: "hidden" });
    const ticks = Array.from({ length: Math.round(this.top / step) }, (_, tick) => (tick + 1) * step);
    this.svg = draw(
      "svg",
      { viewBox: `0 0 ${days.length} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      draw("path", { class: "ticks", d: ticks.map((each) => `M0 ${this.high(each)}H${days.length}`).join("") }),
      this.mark,
      ...this.shapes(),
    );
    this.readout = make("p", { class: "readout", role: "status" });
    this.plot = make(
      "div",
      { class: "plot", tabindex: "0", role: "group", "aria-label": `${label}. Left and right go from day to day.` },
      this.svg,
      ...ticks.map((each) => this.tick(each)),
    );
    this.plot.addEventListener("pointermove", (event) => this.pointAt(event));
    this.plot.addEventListener("pointerleave", () => this.point(null));
    this.plot.addEventListener("blur", () => this.point(null));
    this.plot.addEventListener("keydown", (event) => this.step(event));
    const [first, last] = [days[0], days.at(-1)].map((day) => make("span", {}, day));
    this.figure = make("figure", { class: "columns-chart" }, this.plot, make("figcaption", {}, first, last), this.readout);
    this.point(null);
  }

  high(value) {
    return this.top > 0 ? HEIGHT - (value / this.top) * HEIGHT : HEIGHT;
  }

  tick(value) {
    const text = make("span", { class: "tick" }, this.say(value));
    text.style.bottom = `${HEIGHT - this.high(value)}%`;
    return text;
  }

  shapes() {
    const below = this.days.map(() => 0);
    return this.series.map(({ name, values }, place) => {
      const parts = values.map((value, day) => {
        if (!(value > 0)) return "";
        const [low, high] = [this.high(below[day]), this.high(below[day] + value)];
        below[day] += value;
        return `M${day + 0.12} ${low.toFixed(3)}V${high.toFixed(3)}h.76V${low.toFixed(3)}z`;
      });
      return draw("path", { class: colour(name, place), d: parts.join("") });
    });
  }

  pointAt(event) {
    const box = this.svg.getBoundingClientRect();
    const day = Math.floor(((event.clientX - box.left) / box.width) * this.days.length);
    this.point(day >= 0 && day < this.days.length ? day : null);
  }

  step(event) {
    const last = this.days.length - 1;
    const from = this.pointed ?? (event.key === "ArrowLeft" ? last + 1 : -1);
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.point(Math.min(Math.max(to, 0), last));
  }

  /** Say what a day was like; null: what all were. */
  point(day) {
    this.pointed = day;
    this.mark.setAttribute("visibility", day === null ? "hidden" : "visible");
    if (day !== null) this.mark.setAttribute("x", day);
    const whose = day === null ? [] : this.series.filter(({ values }) => values[day] > 0);
    const parts = whose.map(({ name, values }) => `${name ?? "all others"} ${this.say(values[day])}`);
    const most = Math.max(...this.sums);
    this.readout.textContent =
      day === null
        ? `At most ${this.say(most)}, on ${this.days[this.sums.indexOf(most)]}.`
        : [`${this.days[day]}: ${this.say(this.sums[day])}`, ...parts].join(" · ");
  }
}

/** The least of 1, 2 and 5 times a power of ten that is no less. */
function niceStep(least) {
  if (!(least > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((each) => each * power >= least * (1 - 1e-9));
}
