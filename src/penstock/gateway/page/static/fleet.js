// The view of the fleet, made of what /v1/fleet answers.

import { Chart } from "./charts.js";
import { bar, byId, make, terms } from "./dom.js";
import { number, percent, spoken } from "./words.js";

const SECONDS = 60;
// Of the time between two looks, at least.
const SECOND = 0.9;
const OUTCOMES = ["answered", "refused", "broken", "invalid", "cancelled", "cached"];
const STATES = { ready: "completed", stale: "rejected", unknown: "runs", draining: "runs" };

let charts = null;
let last = null;
// What each second was like, the newest last.
const history = [];

const sum = (values) => values.reduce((one, other) => one + other, 0);
const ended = (told) => sum(Object.values(told.requests));

/** Remember what a second was like; a gateway that has begun anew counts from 0. */
export function note(told) {
  // A click asks, too: then it is the same second still.
  if (last !== null && told.at - last.at < SECOND && ended(told) >= ended(last)) return;
  const restarted = last !== null && ended(told) < ended(last);
  const since = last === null || restarted ? null : told.at - last.at;
  // While the page was hidden, nothing was seen.
  const missed = since === null ? 0 : Math.min(SECONDS, Math.round(since) - 1);
  for (let each = 0; each < missed; each += 1) history.push(null);
  history.push({
    running: sum(told.replicas.map((each) => each.requests)),
    held: told.held,
    ended: since === null ? 0 : (ended(told) - ended(last)) / Math.max(since, 1),
  });
  history.splice(0, history.length - SECONDS);
  last = told;
}

/** Draw everything anew. */
export function show(told) {
  charts ??= {
    running: new Chart(byId("running-chart"), "Requests at replicas", "levels", number),
    held: new Chart(byId("held-chart"), "Requests that wait", "levels", number),
    ended: new Chart(byId("ended-chart"), "Requests that ended", "columns", number),
  };
  for (const [name, chart] of Object.entries(charts)) chart.show(history.map((second) => second?.[name] ?? 0));
  const now = history.at(-1);
  byId("running").textContent = number(now.running);
  byId("held").textContent = number(now.held);
  byId("ended").textContent = number(now.ended);
  byId("ready").textContent = number(told.replicas.filter((each) => each.state === "ready").length);
  const out = told.replicas.filter((each) => each.left_out !== null).length;
  byId("ready-note").textContent =
    `of ${number(told.replicas.length)}` + (out ? `, ${number(out)} left out` : "");
  byId("replicas").replaceChildren(...told.replicas.map(replica));
  byId("outcomes").replaceChildren(
    ...terms([...OUTCOMES.map((name) => [name, number(told.requests[name])])]),
  );
  byId("retries").replaceChildren(
    ...terms(Object.entries(told.retries).map(([name, times]) => [spoken(name), number(times)])),
  );
  byId("settings").replaceChildren(
    ...terms([
      ["policy", told.policy],
      ["blocks of prompts remembered", number(told.index_blocks)],
    ]),
  );
}

function replica(each) {
  return make(
    "tr",
    {},
    make("td", {}, each.url, ...remarks(each)),
    make("td", {}, make("span", { class: `outcome ${STATES[each.state] ?? "failed"}` }, each.state)),
    make("td", {}, each.models.join(", ") || "–"),
    make("td", { class: "number" }, each.most === null ? number(each.requests) : `${number(each.requests)} of ${number(each.most)}`),
    make("td", { class: "number" }, each.waiting === null ? "–" : number(each.waiting)),
    make("td", {}, each.blocks_total ? bar(each.blocks_used / each.blocks_total, "cause") : "–"),
    make("td", { class: "number" }, percent(each.hit_rate)),
    make("td", {}, each.cache),
    make("td", { class: "number" }, number(each.sent)),
    make("td", { class: "number" }, number(each.failures)),
  );
}

/** What sets a replica apart from one that gets its requests. */
function remarks({ why, left_out, unlike }) {
  const said = [
    why || null,
    left_out === null ? null : `left out: ${left_out}`,
    unlike === null ? null : `not like ${unlike}`,
  ];
  return said.filter(Boolean).map((text) => make("small", { class: "remark" }, text));
}
