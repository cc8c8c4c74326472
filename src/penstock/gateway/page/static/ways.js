// The view of a gateway's recent requests, and of the way of one through the gateway and its replica.

import { fullAccount } from "./account.js";
import { bar, make } from "./dom.js";
import { Recent, note } from "./recent.js";
import { duration, number } from "./words.js";

const OUTCOMES = { answered: "completed", refused: "refused", broken: "failed", invalid: "rejected", cached: "completed" };

const outcome = (way) =>
  make("span", { class: `outcome ${OUTCOMES[way.outcome] ?? (way.outcome ? "cancelled" : "runs")}` }, way.outcome ?? "runs");

function cells(way) {
  const tries = way.tries ?? [];
  return [
    make("td", {}, way.path.replace("/v1/", "")),
    make("td", {}, outcome(way)),
    make("td", { class: "number" }, duration(way.seconds)),
    make("td", {}, tries.at(-1)?.replica ?? (way.outcome === "cached" ? "answer cache" : "waits")),
    make("td", { class: "number" }, number(tries.length)),
  ];
}

export const ways = new Recent({
  cells,
  account: (told) => [
    wayOf(told.gateway),
    told.timeline ? fullAccount(told) : note("Its replica does not say why it took its time."),
  ],
  // A replica may count a request as over a moment after the gateway.
  isOver: (told) => Boolean(told.gateway.outcome) && (!told.timeline || told.outcome !== null),
  hint: "Choose a request to see its way.",
  none: "Nothing has come yet; ask something in the playground.",
});

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
