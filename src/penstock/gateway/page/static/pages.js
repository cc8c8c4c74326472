// A long list, a page at a time: a browser is given no more than that, however many there are.

import { make } from "./dom.js";
import { Problem } from "./api.js";

export class Pages {
  /**
   * `load(after)` resolves to { rows, next }: the rows behind a place, null for the first ones, and where the next page
   * begins, null where there is none. `show(rows)` draws them.
   */
  constructor({ load, show, back = "Newer", on = "Older" }) {
    Object.assign(this, { load, show });
    // Where the pages up to this one begin.
    this.places = [null];
    this.next = null;
    this.asked = 0;
    this.back = make("button", { type: "button", onclick: () => this.go(this.places.slice(0, -1)) }, back);
    this.on = make("button", { type: "button", onclick: () => this.go([...this.places, this.next]) }, on);
    this.number = make("span", { class: "note", role: "status" });
    this.problem = make("p", { class: "problem", role: "alert", hidden: true });
    this.bar = make("div", { class: "pages" }, this.back, this.number, this.on);
  }

  /** What is below the list: the way to other pages. */
  get foot() {
    return [this.problem, this.bar];
  }

  /** The first page. */
  begin() {
    return this.go([null]);
  }

  /** The same page again, as it is now. */
  again() {
    return this.go(this.places);
  }

  async go(places) {
    this.asked += 1;
    const asked = this.asked;
    try {
      const { rows, next } = await this.load(places.at(-1));
      // Another page was asked for meanwhile.
      if (asked !== this.asked) return;
      Object.assign(this, { places, next });
      this.show(rows);
      this.problem.hidden = true;
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      this.problem.textContent = problem.message;
      this.problem.hidden = false;
    }
    this.back.disabled = this.places.length === 1;
    this.on.disabled = this.next === null;
    this.number.textContent = `page ${this.places.length}`;
    this.bar.hidden = this.places.length === 1 && this.next === null;
  }
}
