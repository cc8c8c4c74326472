// Limits in use: of everybody, or of one organisation or project.

import { read } from "./admin_api.js";
import { bar, make } from "./dom.js";
import { settingName } from "./settings.js";
import { moment, number, percent } from "./words.js";

const LISTED = 100;
const [NEARLY, FULL] = [0.8, 0.95];

let place = null;

export const limits = {
  async show(where) {
    place = where;
    await refresh();
  },
  async tick() {
    // What somebody points at must not move away.
    if (!place.matches(":hover") && !place.contains(document.activeElement)) await refresh();
  },
};

async function refresh() {
  const where = place;
  const told = await read("limits", { limit: LISTED });
  if (!where.isConnected) return;
  where.replaceChildren(make("article", { class: "card" }, make("h2", {}, "Limits in use ", made(told)), ...listed(told)));
}

const made = (told) =>
  make("span", { class: "unit" }, told.has_more ? `the fullest ${told.data.length}, now` : "organisations and projects, the fullest first, now");

/** What is told of limits, as elements. */
export function listed(told) {
  const apart = told.apart === null ? [] : [make("p", { class: "problem" }, `The store of limits does not answer (${told.apart}); this is what this gateway knows.`)];
  if (!told.data.length) return [...apart, make("p", { class: "note" }, "Nothing is limited.")];
  return [...apart, make("ul", { class: "limits" }, ...told.data.map(row))];
}

function row({ owner, name, limit, used, most, share, until }) {
  const [kind] = owner.split("/");
  const target = kind === "key" ? null : `#admin/${encodeURIComponent(`tenants:${name}`)}`;
  const fill = share >= FULL ? "full" : share >= NEARLY ? "nearly" : share > 0 ? "" : "unused";
  return make(
    "li",
    { "data-owner": owner, "data-limit": limit },
    make("span", { class: "name" }, target === null ? name : make("a", { href: target }, name), make("small", {}, kind)),
    make("span", {}, settingName(limit)),
    bar(Math.min(share, 1), fill),
    make(
      "span",
      { class: "value" },
      `${figure(used)} of ${figure(most)}, ${percent(share)}`,
      until === null ? null : make("small", {}, `until ${moment(until)} UTC`),
    ),
  );
}

/** Money comes as text, and is shown to its last digit. */
const figure = (value) => (typeof value === "string" ? value : number(value));
