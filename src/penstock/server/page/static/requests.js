// The view of recent requests: a list, and the account of the one that is chosen.

import { fullAccount } from "./account.js";
import { get } from "./api.js";
import { byId, make } from "./dom.js";
import { clock, duration, number, spoken } from "./words.js";

const LISTED = 50;

let chosen = null;
// The newest account that was drawn; one that has ended does not change.
let drawn = null;

// Where the server is away, the next turn says so.
byId("order").addEventListener("change", () => showList().catch(() => {}));

/** Show the account of a request, or of none. */
export function choose(id) {
  if (id === chosen) return;
  chosen = id;
  drawn = null;
  for (const row of byId("request-rows").children) mark(row);
  if (id === null) byId("detail").replaceChildren(hint("Choose a request to see where its time went."));
}

/** Ask for the list, and for the chosen request while it changes. Raises a Problem where the server does not answer. */
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
  byId("request-note").textContent = data.length
    ? ""
    : "Nothing has come yet that generates or embeds; ask something in the playground.";
}

function listed(request) {
  const target = `#requests/${encodeURIComponent(request.id)}`;
  const row = make(
    "tr",
    { "data-id": request.id, onclick: () => (location.hash = target) },
    make("td", {}, make("a", { href: target }, clock(request.created))),
    make("td", {}, spoken(request.endpoint)),
    make("td", {}, make("span", { class: `outcome ${request.outcome ?? "runs"}` }, spoken(request.outcome ?? request.state))),
    make("td", { class: "number" }, duration(request.seconds)),
    make("td", { class: "number" }, duration(request.time_to_first_token)),
    make("td", { class: "number" }, `${number(request.prompt_tokens)} + ${number(request.output_tokens)}`),
    make("td", { title: request.verdict.sentence }, spoken(request.verdict.cause)),
  );
  mark(row);
  return row;
}

function mark(row) {
  row.classList.toggle("chosen", row.dataset.id === chosen);
}

async function showChosen() {
  if (chosen === null || drawn?.outcome) return;
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
  drawn = told;
  byId("detail").replaceChildren(fullAccount(told));
}

const hint = (text) => make("p", { class: "note" }, text);
