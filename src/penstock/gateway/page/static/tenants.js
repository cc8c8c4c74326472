// The tree of organisations and their projects, and what there is of the one that is chosen.

import { change, mayChange, read } from "./admin_api.js";
import { ask } from "./dialogs.js";
import { make } from "./dom.js";
import { Keys, button } from "./keys.js";
import { listed } from "./limits.js";
import { Pages } from "./pages.js";
import { changedSettings, settingFields, settingTerms } from "./settings.js";
import { count, moment } from "./words.js";

// Lines of the tree at a time; while there are no more, every organisation is open.
const LINES = 100;
const LIMITS = 20;

let owners = new Map();
let chosen = null;
let parts = null;

export const tenants = {
  async show(place, name) {
    const filter = make("input", { type: "search", "aria-label": "Search organisations and projects", placeholder: "Search" });
    const tree = make("ul", { class: "tree", id: "tree" });
    const lines = new Pages({ load: loadLines, show: (found) => tree.replaceChildren(...found.map(line)), back: "Back", on: "More" });
    filter.addEventListener("input", () => lines.begin());
    const mine = { filter, tree, lines, detail: make("div", { class: "tenant" }), limits: null };
    parts = null;
    chosen = name;
    place.replaceChildren(
      make(
        "div",
        { class: "tenants" },
        make(
          "div",
          { class: "card" },
          make("div", { class: "row-head" }, make("h2", {}, "Tenants"), mayChange() ? button("New organisation", create) : null),
          filter,
          tree,
          ...lines.foot,
        ),
        mine.detail,
      ),
    );
    await load();
    if (!place.isConnected) return;
    parts = mine;
    // Another one may have been chosen meanwhile.
    await this.move(chosen);
  },

  /** Show what there is of another one. */
  async move(name) {
    chosen = name;
    if (parts === null) return;
    await (parts.filter.value ? parts.lines.again() : parts.lines.go(pagesUpTo(name)));
    await showChosen();
  },

  async tick() {
    // What somebody points at must not move away.
    const place = parts?.limits;
    if (place && !place.matches(":hover") && !place.contains(document.activeElement)) await showLimits();
  },
};

async function load() {
  const [organisations, projects] = await Promise.all([read("organisations"), read("projects")]);
  owners = new Map(organisations.data.map((each) => [each.name, { ...each, projects: [] }]));
  for (const project of projects.data) owners.get(project.organisation)?.projects.push(project);
  const byName = (one, other) => (one.name < other.name ? -1 : 1);
  owners = new Map([...owners.values()].sort(byName).map((each) => [each.name, each]));
  for (const each of owners.values()) each.projects.sort(byName);
}

/** The lines of the tree that can be seen on one page or another. */
function allLines() {
  const text = parts.filter.value.trim().toLowerCase();
  const matches = ({ name }) => name.toLowerCase().includes(text);
  const few = [...owners.values()].reduce((sum, each) => sum + 1 + each.projects.length, 0) <= LINES;
  const found = [];
  for (const organisation of owners.values()) {
    const projects = organisation.projects.filter(matches);
    if (!matches(organisation) && !projects.length) continue;
    const isChosen = chosen === organisation.name || organisation.projects.some(({ name }) => name === chosen);
    found.push(organisation, ...(few || text || isChosen ? projects : []));
  }
  return found;
}

async function loadLines(after) {
  const all = allLines();
  const begin = after ?? 0;
  return { rows: all.slice(begin, begin + LINES), next: begin + LINES < all.length ? begin + LINES : null };
}

/** Where the pages begin until the one that has a name. */
function pagesUpTo(name) {
  const place = Math.max(0, allLines().findIndex((each) => each.name === name));
  return Array.from({ length: Math.floor(place / LINES) + 1 }, (_, page) => (page === 0 ? null : page * LINES));
}

function line(owner) {
  const isProject = owner.organisation !== undefined;
  const shown = isProject ? owner.name.slice(owner.organisation.length + 1) : owner.name;
  const link = make(
    "a",
    { href: address(owner.name), "aria-current": owner.name === chosen ? "true" : null },
    shown,
    owner.closed_at === null ? null : make("small", {}, "closed"),
    isProject || !owner.projects.length ? null : make("small", {}, count(owner.projects.length, "project")),
  );
  return make("li", { class: isProject ? "project" : "organisation", "data-name": owner.name }, link);
}

const address = (name) => `#admin/${encodeURIComponent(`tenants:${name}`)}`;

function find(name) {
  for (const organisation of owners.values()) {
    if (organisation.name === name) return organisation;
    const project = organisation.projects.find((each) => each.name === name);
    if (project !== undefined) return project;
  }
  return null;
}

async function showChosen() {
  const owner = find(chosen);
  if (owner === null) {
    parts.limits = null;
    const hint = owners.size ? "Choose an organisation or a project." : "There is no organisation yet.";
    const text = chosen === null ? hint : `There is no organisation or project ${chosen}.`;
    parts.detail.replaceChildren(make("article", { class: "card" }, make("p", { class: "note" }, text)));
    return;
  }
  const isProject = owner.organisation !== undefined;
  const keys = isProject ? new Keys(owner.name) : null;
  parts.limits = make("div", { class: "in-use" });
  parts.detail.replaceChildren(
    make(
      "article",
      { class: "card" },
      make(
        "div",
        { class: "row-head" },
        make("h2", {}, owner.name, make("span", { class: "unit" }, isProject ? "project" : "organisation")),
        mayChange() && owner.closed_at === null ? make("div", { class: "actions" }, ...actions(owner, isProject)) : null,
      ),
      make("p", { class: "note" }, since(owner)),
      settingTerms(owner.settings),
    ),
    make("article", { class: "card" }, make("h2", {}, "Limits in use"), parts.limits),
    ...(keys === null ? [] : [keys.card]),
  );
  await Promise.all([showLimits(), keys?.begin()]);
}

function since({ created_at, closed_at }) {
  const made = `Made at ${moment(created_at)} UTC.`;
  return closed_at === null ? made : `${made} Closed at ${moment(closed_at)} UTC: none of its keys is taken.`;
}

async function showLimits() {
  const place = parts?.limits;
  if (!place?.isConnected) return;
  const of = find(chosen)?.organisation === undefined ? "organisation" : "project";
  const told = await read("limits", { [of]: chosen, limit: LIMITS });
  if (place !== parts.limits) return;
  const more = told.has_more ? [make("p", { class: "note" }, `These are the fullest ${LIMITS}.`)] : [];
  place.replaceChildren(...listed(told), ...more);
}

function actions(owner, isProject) {
  const add = isProject ? [] : [button("New project", () => createProject(owner))];
  return [...add, button("Change", () => set(owner, isProject)), button("Close", () => close(owner, isProject), "quiet danger")];
}

async function create() {
  const made = await ask({
    title: "New organisation",
    fields: [{ name: "name", label: "name" }, ...settingFields({})],
    action: "Make it",
    act: (values) => change("POST", "organisations", { name: values.name, settings: changedSettings(values, {}) }),
  });
  await goTo(made);
}

async function createProject({ name: organisation }) {
  const made = await ask({
    title: `New project of ${organisation}`,
    fields: [{ name: "name", label: "name", note: `behind "${organisation}."` }, ...settingFields({}, { ofProject: true })],
    action: "Make it",
    act: (values) =>
      change("POST", "projects", { name: `${organisation}.${values.name}`, settings: changedSettings(values, {}) }),
  });
  await goTo(made);
}

async function set(owner, isProject) {
  const done = await ask({
    title: `Change ${owner.name}`,
    fields: settingFields(owner.settings, { ofProject: isProject }),
    action: "Change it",
    act: (values) => change("PATCH", path(owner, isProject), changedSettings(values, owner.settings)),
  });
  if (done !== null) await again();
}

async function close(owner, isProject) {
  const done = await ask({
    title: `Close ${owner.name}?`,
    text: [`None of its ${isProject ? "" : "projects' "}keys is taken any more. What it has used stays. This cannot be taken back.`],
    action: "Close it",
    danger: true,
    act: () => change("DELETE", path(owner, isProject)),
  });
  if (done !== null) await again();
}

async function again() {
  await load();
  await tenants.move(chosen);
}

async function goTo(made) {
  if (made === null) return;
  await load();
  location.hash = address(made.name);
}

const path = ({ name }, isProject) => `${isProject ? "projects" : "organisations"}/${encodeURIComponent(name)}`;
