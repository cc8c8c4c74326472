// A list of recent requests, and what is told of the one that is chosen.

import { get } from "./api.js";
import { byId, make } from "./dom.js";
import { clock } from "./words.js";

const LISTED = 50;

export class Recent {
  /**
   * `cells(request)` are a row's behind its time; `account(told)` are the elements of what is told of a request, and
   * `isOver(told)` whether that changes no more. `hint` is said where none is chosen, `none` where there is none.
   */
  constructor({ cells, account, isOver, hint, none }) {
    Object.assign(this, { cells, account, isOver, hint, none });
    this.chosen = null;
    // The newest account that was drawn; one that is over is not asked for again.
    this.drawn = null;
    // Where the server is away, the next turn says so.
    byId("order").addEventListener("change", () => this.showList().catch(() => {}));
  }

  /** Show the account of a request, or of none. */
  choose(id) {
    if (id === this.chosen) return;
    this.chosen = id;
    this.drawn = null;
    for (const row of byId("request-rows").children) this.mark(row);
    if (id === null) byId("detail").replaceChildren(note(this.hint));
  }

  /** Ask for the list, and for the chosen request while it changes. Raises a Problem where the server does not answer. */
  async refresh() {
    await Promise.all([this.showList(), this.showChosen()]);
  }

  async showList() {
    // What somebody points at must not move away.
    if (byId("request-rows").matches(":hover") && byId("request-rows").children.length) return;
    const { data } = await get(`v1/requests?limit=${LISTED}&order=${byId("order").value}`);
    const focused = document.activeElement?.closest("#request-rows a")?.getAttribute("href");
    byId("request-rows").replaceChildren(...data.map((request) => this.row(request)));
    if (focused) byId("request-rows").querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
    byId("request-note").textContent = data.length ? "" : this.none;
  }

  row(request) {
    const target = `#requests/${encodeURIComponent(request.id)}`;
    const row = make(
      "tr",
      { "data-id": request.id, onclick: () => (location.hash = target) },
      make("td", {}, make("a", { href: target }, clock(request.created))),
      ...this.cells(request),
    );
    this.mark(row);
    return row;
  }

  mark(row) {
    row.classList.toggle("chosen", row.dataset.id === this.chosen);
  }

  async showChosen() {
    if (this.chosen === null || (this.drawn !== null && this.isOver(this.drawn))) return;
    const id = this.chosen;
    let told;
    try {
      told = await get(`v1/requests/${encodeURIComponent(id)}/explain`);
    } catch (problem) {
      if (problem.away || problem.status >= 500) throw problem;
      if (id === this.chosen) byId("detail").replaceChildren(note(problem.message));
      return;
    }
    if (id !== this.chosen) return;
    this.drawn = told;
    byId("detail").replaceChildren(...this.account(told));
  }
}

/** A sentence in small letters. */
export const note = (text) => make("p", { class: "note" }, text);
