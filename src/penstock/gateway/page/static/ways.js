// The view of recent requests: a list, and the way of the one that is chosen through the gateway and its replica.

import { fullAccount } from "./account.js";
import { get } from "./api.js";
import { bar, byId, make } from "./dom.js";
import { clock, duration, number } from "./words.js";

const LISTED = 50;
const OUTCOMES = { answered: "completed", refused: "refused", broken: "failed", invalid: "rejected" };

let chosen = null;

// Where the gateway is away, the next turn says so.
byId("order").addEventListener("change", () => showList().catch(() => {}));

/** Show the way of a request, or of none. */
export function choose(id) {
  if (id === chosen) return;
  chosen = id;
  for (const row of byId("request-rows").children) mark(row);
  if (id === null) byId("detail").replaceChildren(hint("Choose a request to see its way."));
}

/** Ask for the list, and for the chosen request. Raises a Problem where the gateway does not answer. */
export async function refresh() {
  await Promise.all([showList(), showChosen()]);
}

async function showList() {
  // What somebody points at must not move away.
  if (byId("request-rows").matches(":hover") && byId("request-rows").children.length) return;
  const { data } = await get(`v1/requests?limit=${LISTED}&order=${byId("order").value}`);
  const focused = document.activeElement?.closest("#request-rows a")?.getAttribute("href");
  byId("request-rows").replaceChildren(...data.map(listed));
  if (focused) byId("request-rows").querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  byId("request-note").textContent = data.length ? "" : "Nothing has come yet; ask something in the playground.";
}

function listed(way) {
  const target = `#requests/${encodeURIComponent(way.id)}`;
  const tries = way.tries ?? [];
  const row = make(
    "tr",
    { "data-id": way.id, onclick: () => (location.hash = target) },
    make("td", {}, make("a", { href: target }, clock(way.created))),
    make("td", {}, way.path.replace("/v1/", "")),
    make("td", {}, outcome(way)),
    make("td", { class: "number" }, duration(way.seconds)),
    make("td", {}, tries.at(-1)?.replica ?? "waits"),
    make("td", { class: "number" }, number(tries.length)),
  );
  mark(row);
  return row;
}

const outcome = (way) =>
  make("span", { class: `outcome ${OUTCOMES[way.outcome] ?? (way.outcome ? "cancelled" : "runs")}` }, way.outcome ?? "runs");

function mark(row) {
  row.classList.toggle("chosen", row.dataset.id === chosen);
}

async function showChosen() {
  if (chosen === null) return;
  const id = chosen;
  let told;
  try {
    told = await get(`v1/requests/${encodeURIComponent(id)}/explain`);
  } catch (problem) {
    if (problem.away || problem.status >= 500) throw problem;
    if (id === chosen) byId("detail").replaceChildren(hint(problem.message));
    return;
  }
  if (id !== chosen) return;
  byId("detail").replaceChildren(
    wayOf(told.gateway),
    told.timeline ? fullAccount(told) : hint("Its replica does not say why it took its time."),
  );
}

/** Where a request was sent, one after the other, and why there. */
function wayOf(way) {
  const whole = way.seconds ?? Math.max(0, ...(way.tries ?? []).map((each) => each.at + (each.seconds ?? 0)));
  return make(
    "div",
    { class: "account full" },
    make("h2", {}, "At the gateway ", outcome(way)),
    make("p", { class: "id" }, way.id),
    make("ol", { class: "timeline", "aria-label": `Way of ${duration(whole)}` }, ...(way.tries ?? []).map((each) => tried(each, whole || 1))),
  );
}

function tried({ replica, reason, at, seconds, ended }, whole) {
  return make(
    "li",
    { class: "part" },
    make("span", { class: "name" }, replica),
    bar((seconds ?? 0) / whole, "decode", at / whole),
    make("span", { class: "value" }, duration(seconds)),
    make("span", { class: "detail" }, `${reason}${ended ? `; ${ended}` : ""}`),
  );
}

const hint = (text) => make("p", { class: "note" }, text);
