// What was used on each day, by model, project or organisation: plots, and the figures that they are made of.

import { read } from "./admin_api.js";
import { Columns, colour } from "./columns.js";
import { bar, make } from "./dom.js";
import { amount, count, number } from "./words.js";

const NAMED = 7;
const DAY_MS = 86_400_000;
const PERIODS = { "7 days": 7, "30 days": 30, "90 days": 90, "a year": 366 };
const OFFERED = 200;
const tokens = (each) => each.prompt_tokens + each.output_tokens;
const MEASURES = {
  cost: { of: (each) => Number(each.cost), say: (value) => money(value) },
  tokens: { of: tokens, say: (value) => number(value) },
  requests: { of: (each) => each.requests, say: (value) => number(value) },
};

// What is chosen, while the page is open.
const wanted = { period: "30 days", by: "model", measure: "cost", of: "" };
let place = null;
let asked = 0;
let told = null;

export const spending = {
  async show(where) {
    place = make("div", { class: "spending" });
    where.replaceChildren(await controls(), place);
    await refresh();
  },
};

async function controls() {
  const [organisations, projects] = await Promise.all([read("organisations"), read("projects")]);
  const names = [...organisations.data, ...projects.data].map(({ name }) => name).sort();
  const of = make("input", { list: "owners", placeholder: "all", value: wanted.of, autocomplete: "off", spellcheck: "false" });
  of.addEventListener("change", () => {
    wanted.of = of.value.trim();
    refresh();
  });
  return make(
    "div",
    { class: "controls card" },
    labelled("The last", choice("period", Object.keys(PERIODS), refresh)),
    labelled("By", choice("by", ["model", "project", "organisation"], refresh)),
    labelled("Shown", choice("measure", Object.keys(MEASURES), draw)),
    labelled("Of", of),
    make("datalist", { id: "owners" }, ...names.slice(0, OFFERED).map((name) => make("option", { value: name }))),
  );
}

const labelled = (text, element) => make("label", {}, text, element);

function choice(name, options, changed) {
  const select = make("select", { "data-choice": name }, ...options.map((each) => make("option", { selected: each === wanted[name] }, each)));
  select.addEventListener("change", () => {
    wanted[name] = select.value;
    changed();
  });
  return select;
}

async function refresh() {
  asked += 1;
  const mine = asked;
  const today = Date.now();
  const [first, last] = [today - (PERIODS[wanted.period] - 1) * DAY_MS, today].map(dayOf);
  try {
    const found = await read("spending", { first, last, by: wanted.by, of: wanted.of || null, most: NAMED });
    if (mine !== asked) return;
    told = found;
    draw();
  } catch (problem) {
    if (!("away" in problem)) throw problem;
    if (mine === asked) place.replaceChildren(make("p", { class: "problem", role: "alert" }, problem.message));
  }
}

const dayOf = (time) => new Date(time).toISOString().slice(0, 10);

function draw() {
  if (!told.totals.length) {
    place.replaceChildren(make("article", { class: "card" }, make("p", { class: "note" }, "Nothing was used in these days.")));
    return;
  }
  const { of, say } = MEASURES[wanted.measure];
  const days = allDays(told.first, told.last);
  const at = new Map(days.map((day, index) => [day, index]));
  const series = told.totals.map(({ name }) => ({ name, values: days.map(() => 0) }));
  const byName = new Map(series.map((each) => [each.name, each.values]));
  for (const each of told.days) byName.get(each.name)[at.get(each.day)] = of(each);
  const label = `${wanted.measure} by day and ${told.by}, ${told.first} to ${told.last}`;
  const chart = new Columns({ label, days, series, say });
  place.replaceChildren(
    make("article", { class: "card" }, make("h2", {}, `${wanted.measure} by day `, unit()), chart.figure, figures(days, series, say)),
    make("article", { class: "card" }, make("h2", {}, `By ${told.by} `, make("span", { class: "unit" }, sum())), totals(of)),
  );
}

function allDays(first, last) {
  const [begin, end] = [first, last].map((day) => Date.parse(`${day}T00:00:00Z`));
  return Array.from({ length: Math.round((end - begin) / DAY_MS) + 1 }, (_, day) => dayOf(begin + day * DAY_MS));
}

const unit = () => make("span", { class: "unit" }, wanted.measure === "cost" ? "in UTC, in the currency of prices" : "in UTC");

function sum() {
  const unpriced = told.totals.reduce((all, each) => all + each.unpriced_requests, 0);
  const without = unpriced ? `; ${number(unpriced)} of them had no price` : "";
  return `${money(told.cost)} for ${count(told.requests, "request")}${without}`;
}

function totals(of) {
  const most = Math.max(...told.totals.map(of));
  const heads = [told.by, "", "Cost", "Requests", "Prompt tokens", "Of them cached", "Output tokens"];
  const rows = told.totals.map((each, index) =>
    make(
      "tr",
      {},
      make("td", { class: "wrapped" }, make("span", { class: `swatch ${colour(each.name, index)}` }), each.name ?? "all others"),
      make("td", { class: "share" }, bar(most > 0 ? of(each) / most : 0, colour(each.name, index))),
      // To its last digit.
      make("td", { class: "number", title: each.cost }, money(each.cost)),
      ...[each.requests, each.prompt_tokens, each.cached_tokens, each.output_tokens].map((value) =>
        make("td", { class: "number" }, number(value)),
      ),
    ),
  );
  const head = heads.map((each, index) => make("th", { scope: "col", class: index > 1 ? "number" : null }, each));
  return make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", { id: "totals" }, ...rows)));
}

/** The chart as a table, which is made once somebody opens it. */
function figures(days, series, say) {
  const scroll = make("div", { class: "scroll" });
  const details = make("details", {}, make("summary", {}, "The figures"), scroll);
  details.addEventListener("toggle", () => {
    if (!details.open || scroll.firstChild) return;
    const heads = ["Day", ...series.map(({ name }) => name ?? "all others")];
    const head = heads.map((each, index) => make("th", { scope: "col", class: index ? "number" : null }, each));
    const rows = days.map((day, index) =>
      make("tr", {}, make("td", {}, day), ...series.map(({ values }) => make("td", { class: "number" }, say(values[index])))),
    );
    scroll.append(make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows.reverse())));
  });
  return details;
}

/** With two digits behind the point, or with three that say something. */
function money(value) {
  const given = Number(value);
  return given >= 1 ? given.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 }) : amount(given);
}
