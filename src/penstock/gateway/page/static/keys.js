// Keys of a project, or those of administrators, a page at a time, and what can be done with them.

import { change, mayChange, read } from "./admin_api.js";
import { ask, showSecret } from "./dialogs.js";
import { make } from "./dom.js";
import { Pages } from "./pages.js";
import { briefly, changedSettings, settingFields } from "./settings.js";
import { moment } from "./words.js";

const LISTED = 50;
const DAY = 86400;
const STATES = { usable: "completed", expired: "rejected", revoked: "refused" };

/** The card of a project's keys; of those of administrators, where `project` is "". */
export class Keys {
  constructor(project) {
    this.project = project;
    this.rows = make("tbody", { class: "keys" });
    this.search = make("input", { type: "search", "aria-label": "Search keys", placeholder: "Search: name, id, beginning" });
    this.search.addEventListener("input", () => this.pages.begin());
    this.pages = new Pages({ load: (after) => this.load(after), show: (keys) => this.show(keys) });
    const heads = ["Name", "Begins with", project === "" ? "Role" : "Settings", "State (UTC)", "Last used", ...(mayChange() ? [""] : [])];
    this.card = make(
      "article",
      { class: "card" },
      make(
        "div",
        { class: "row-head" },
        make("h2", {}, project === "" ? "Keys of administrators and auditors" : "Keys"),
        make("div", { class: "actions" }, this.search, mayChange() ? button("New key", () => this.create()) : null),
      ),
      make(
        "div",
        { class: "scroll" },
        make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((each) => make("th", { scope: "col" }, each)))), this.rows),
      ),
      ...this.pages.foot,
    );
  }

  begin() {
    return this.pages.begin();
  }

  async load(after) {
    const search = this.search.value.trim() || null;
    const { data, has_more } = await read("keys", { project: this.project, search, after, limit: LISTED });
    return { rows: data, next: has_more ? data.at(-1).id : null };
  }

  show(keys) {
    const columns = mayChange() ? 6 : 5;
    const none = make("tr", {}, make("td", { class: "note", colspan: columns }, "There is no such key."));
    this.rows.replaceChildren(...(keys.length ? keys.map((each) => this.row(each)) : [none]));
  }

  row(key) {
    return make(
      "tr",
      { "data-id": key.id },
      make("td", {}, key.name, make("small", { class: "remark" }, key.id)),
      make("td", {}, make("code", {}, `${key.shown}…`)),
      make("td", { class: "wrapped" }, this.project === "" ? key.role : briefly(key.settings)),
      make("td", {}, make("span", { class: `outcome ${STATES[key.state]}` }, key.state), since(key)),
      make("td", {}, key.last_used_on ?? "–"),
      mayChange() ? make("td", { class: "actions" }, ...this.actions(key)) : null,
    );
  }

  actions(key) {
    if (key.state === "revoked") return [];
    const revoke = button("Revoke", () => this.revoke(key), "quiet danger");
    if (key.state === "expired") return [revoke];
    const own = [button("Rotate", () => this.rotate(key), "quiet"), revoke];
    return this.project === "" ? own : [button("Change", () => this.set(key), "quiet"), ...own];
  }

  async create() {
    const who = this.project === "" ? "an administrator" : this.project;
    const role = { name: "role", label: "role", options: ["auditor", "admin"], note: "an auditor sees everything and changes nothing" };
    const made = await ask({
      title: `New key of ${who}`,
      fields: [
        { name: "name", label: "name", note: "tells it from others" },
        { name: "days", label: "days", note: "after which it expires; empty: never" },
        ...(this.project === "" ? [role] : settingFields({})),
      ],
      action: "Make the key",
      act: (values) => {
        const days = Number(values.days);
        const expires = values.days === "" ? {} : { expires_in: Number.isFinite(days) ? days * DAY : values.days };
        const whose = this.project === "" ? { role: values.role } : { project: this.project, settings: changedSettings(values, {}) };
        return change("POST", "keys", { name: values.name, ...expires, ...whose });
      },
    });
    if (made === null) return;
    await showSecret(`The new key ${made.name}`, made.key);
    await this.pages.begin();
  }

  async set(key) {
    const done = await ask({
      title: `Change the key ${key.name}`,
      fields: settingFields(key.settings),
      action: "Change it",
      act: (values) => change("PATCH", path(key), changedSettings(values, key.settings)),
    });
    if (done !== null) await this.pages.again();
  }

  async rotate(key) {
    const made = await ask({
      title: `Rotate the key ${key.name}`,
      text: [`A new key takes the place of ${key.shown}…, with the same settings.`],
      fields: [{ name: "hours", label: "hours", note: "for which the old key is still taken", value: "24" }],
      action: "Rotate it",
      act: ({ hours }) => {
        const overlap = hours === "" ? 0 : Number(hours) * 3600;
        return change("POST", `${path(key)}/rotate`, { overlap: Number.isFinite(overlap) ? overlap : hours });
      },
    });
    if (made === null) return;
    await showSecret(`The new key ${made.name}`, made.key);
    await this.pages.begin();
  }

  async revoke(key) {
    const done = await ask({
      title: `Revoke the key ${key.name}?`,
      text: [`No gateway takes ${key.shown}… any more. This cannot be taken back.`],
      fields: [{ name: "end_streams", label: "End what is under way with it, too", type: "checkbox" }],
      action: "Revoke it",
      danger: true,
      act: (values) => change("POST", `${path(key)}/revoke`, values),
    });
    if (done !== null) await this.pages.again();
  }
}

/** Since when, or until when, a key is in its state; null where it has no end. */
function since({ state, revoked_at, expires_at }) {
  const at = state === "revoked" ? revoked_at : expires_at;
  if (at === null) return null;
  return make("small", { class: "remark" }, `${state === "usable" ? "until" : "since"} ${moment(at)}`);
}

const path = (key) => `keys/${encodeURIComponent(key.id)}`;

/** A button that does something; `kind` is a class. */
export const button = (text, act, kind = null) => make("button", { type: "button", class: kind, onclick: act }, text);

export const administrators = {
  async show(place) {
    const keys = new Keys("");
    place.replaceChildren(keys.card);
    await keys.begin();
  },
};
