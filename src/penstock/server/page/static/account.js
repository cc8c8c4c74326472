// A request's account: its timeline as bars, the verdict, and what it is made of. From /v1/requests/{id}/explain.

import { bar, make, terms } from "./dom.js";
import { amount, duration, number, percent, spoken } from "./words.js";

const MOST_PARTS = 8;
const LEAST_SHARE = 0.005;
const MISSING = {
  unseen: "nobody had sent what follows",
  different: "what was cached goes on otherwise",
  evicted: "it had been evicted",
  other_tenant: "it is there for another key only",
  off: "there is no prefix cache for it",
};
const LEFT = {
  slower: "were left there, since reading was expected to take longer than computing",
  no_room: "were left there, since the pool had no room for them",
  gone: "were left there, since what comes before them is gone",
  failed: "could not be read",
  late: "did not come in time",
};

/** The timeline and the verdict, short enough to stand beside an answer. */
export function shortAccount(told) {
  return make(
    "div",
    { class: "account" },
    timeline(told, { parts: false }),
    make("p", { class: "verdict" }, verdictOf(told)),
    make("p", { class: "note" }, make("a", { href: `#requests/${encodeURIComponent(told.id)}` }, "all of its account")),
  );
}

/** All of it. */
export function fullAccount(told) {
  return make(
    "div",
    { class: "account full" },
    make("h2", {}, `${spoken(told.endpoint)} request `, make("span", { class: `outcome ${told.outcome ?? "runs"}` }, endOf(told))),
    make("p", { class: "id" }, told.id),
    make("p", { class: "verdict" }, verdictOf(told)),
    told.error === null ? null : make("p", { class: "problem" }, told.error.message ?? told.error.code ?? "It failed."),
    make("h3", {}, "Timeline"),
    timeline(told, { parts: true }),
    make("dl", { class: "facts" }, ...terms(factsOf(told))),
    make("h3", {}, "What took its time"),
    ...causesOf(told),
  );
}

const verdictOf = (told) =>
  told.waits_for === null ? told.verdict.sentence : `It waits for ${told.waits_for}.`;

const endOf = (told) => (told.outcome === null ? told.state : spoken(told.outcome));

function timeline(told, { parts }) {
  const rows = told.timeline.flatMap((phase) => [
    row(told, phase, phase.name, phase.name, ""),
    ...(parts ? partRows(told, phase) : []),
  ]);
  return make("ol", { class: "timeline", "aria-label": `Timeline of ${duration(told.seconds)}` }, ...rows);
}

function partRows(told, phase) {
  const longest = [...phase.parts].sort((one, other) => other.seconds - one.seconds).slice(0, MOST_PARTS);
  const rows = phase.parts
    .filter((part) => longest.includes(part))
    .map((part) => row(told, part, spoken(part.name), `${phase.name} part-${part.name}`, "part"));
  const more = phase.parts.length - longest.length;
  if (more > 0) rows.push(make("li", { class: "part" }, make("span", { class: "detail" }, `and ${more} shorter ones`)));
  return rows;
}

function row(told, { start, seconds, detail }, name, kind, style) {
  const whole = told.seconds || 1;
  return make(
    "li",
    { class: style, title: detail || null },
    make("span", { class: "name" }, name),
    bar(seconds / whole, kind, start / whole),
    make("span", { class: "value" }, duration(seconds)),
    detail ? make("span", { class: "detail" }, detail) : null,
  );
}

function factsOf(told) {
  const facts = [
    ["took", duration(told.seconds)],
    ["first token after", duration(told.time_to_first_token)],
    ["in the queue", duration(told.queue_seconds)],
    ["tokens", `${number(told.prompt_tokens)} prompt, ${number(told.output_tokens)} output`],
  ];
  if (told.model) facts.push(["model", told.model]);
  if (told.decode !== null) facts.push(["decoded at", `${amount(told.decode.tokens_per_second)} tokens/s`]);
  if (told.decode?.mean_batch) facts.push(["beside", `${amount(told.decode.mean_batch)} sequences at a time`]);
  if (told.decode?.memory_share) facts.push(["of memory bandwidth", percent(told.decode.memory_share)]);
  if (told.prefix !== null) facts.push(["prefix cache", prefixOf(told.prefix)]);
  for (const tier of told.prefix?.tiers ?? []) facts.push([`from the ${tier.tier}`, tierOf(tier)]);
  return facts;
}

function prefixOf(prefix) {
  const missing = prefix.missing === null ? "" : `; ${MISSING[prefix.missing] ?? spoken(prefix.missing)}`;
  const position = prefix.position === null ? "" : ` from token ${number(prefix.position)} on`;
  return `${number(prefix.found)} of ${number(prefix.looked_up)} tokens found${missing}${position}`;
}

function tierOf(tier) {
  const waited = tier.seconds === null ? "" : ` in ${duration(tier.seconds)}`;
  const left = tier.why_left === null ? "" : `; ${number(tier.left)} ${LEFT[tier.why_left] ?? spoken(tier.why_left)}`;
  return `${number(tier.tokens)} tokens${waited}${left}`;
}

function causesOf(told) {
  return told.causes
    .filter((cause) => cause.share >= LEAST_SHARE)
    .map((cause) =>
      make(
        "div",
        { class: "measured" },
        make("span", {}, `${spoken(cause.code)} `, cause.setting === null ? null : make("code", {}, cause.setting)),
        make("span", { class: "value" }, `${duration(cause.seconds)}, ${percent(cause.share)}`),
        bar(cause.share, "cause"),
      ),
    );
}
