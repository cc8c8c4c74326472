// What can be set of organisations, projects and keys: as it is read, typed and sent.

import { make, terms } from "./dom.js";

const LISTS = ["models", "endpoints", "privacy_classes"];
const OF_PROJECTS = ["weight", "max_stored_bytes"];
const NOTES = {
  models: "names, with commas between them; empty: all",
  endpoints: "paths, with commas between them; empty: all",
  max_context_tokens: "of a prompt and its answer",
  max_output_tokens: "of an answer",
  max_concurrent_requests: "that are under way",
  requests_per_minute: null,
  tokens_per_minute: null,
  budget_per_day: "in the currency of prices, by the calendar in UTC",
  budget_per_month: null,
  privacy_classes: "own: own machines only; beside it, classes of providers",
  priority_class: "background: behind all others",
  answer_cache_seconds: "for which an answer may be given again; 0: never",
  weight: "of the engines, beside other projects; 1 without",
  max_stored_bytes: "of files and results that are kept for it",
};

/** Such as "requests per minute". */
export const settingName = (name) => name.replaceAll("_", " ");

const textOf = (value) => (Array.isArray(value) ? value.join(", ") : String(value ?? ""));

/** The fields of a dialog for them, with what is set. */
export function settingFields(settings, { ofProject = false } = {}) {
  const names = Object.keys(NOTES).filter((name) => ofProject || !OF_PROJECTS.includes(name));
  return names.map((name) => ({ name, label: settingName(name), note: NOTES[name], value: textOf(settings[name]) }));
}

/** What was changed in these fields, as the API takes it: null takes a setting back. What is no number is sent as it is. */
export function changedSettings(values, before) {
  const found = {};
  for (const name of Object.keys(NOTES)) {
    const text = values[name];
    if (text === undefined || text === textOf(before[name])) continue;
    if (text === "") found[name] = null;
    else if (LISTS.includes(name)) found[name] = text.split(",").map((each) => each.trim()).filter(Boolean);
    else found[name] = /^-?\d+(\.\d+)?$/.test(text) && !name.startsWith("budget") ? Number(text) : text;
  }
  return found;
}

/** Settings in one line, for tables. */
export const briefly = (settings) =>
  Object.entries(settings)
    .map(([name, value]) => `${settingName(name)} ${textOf(value)}`)
    .join("; ") || "–";

/** Settings as a list. */
export function settingTerms(settings) {
  const pairs = Object.entries(settings).map(([name, value]) => [settingName(name), textOf(value)]);
  return pairs.length ? make("dl", { class: "facts" }, ...terms(pairs)) : make("p", { class: "note" }, "Nothing is set.");
}
