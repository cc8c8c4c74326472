// The audit log: what was changed, by whom, and which keys were refused; the newest first.

import { read } from "./admin_api.js";
import { make } from "./dom.js";
import { Pages } from "./pages.js";
import { moment } from "./words.js";

const LISTED = 50;

export const audit = {
  async show(place) {
    const rows = make("tbody", { id: "audit-rows" });
    const pages = new Pages({ load, show: (entries) => rows.replaceChildren(...entries.map(row)) });
    const heads = ["At (UTC)", "By", "What", "Of", "Detail"].map((each) => make("th", { scope: "col" }, each));
    const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), rows);
    place.replaceChildren(
      make("article", { class: "card" }, make("h2", {}, "Audit log"), make("div", { class: "scroll" }, table), ...pages.foot),
    );
    await pages.begin();
  },
};

async function load(before) {
  const { data, has_more } = await read("audit", { limit: LISTED, before });
  return { rows: data, next: has_more ? data.at(-1).sequence : null };
}

// With spaces, at which its lines break.
const inWords = (detail) => (Object.keys(detail).length ? JSON.stringify(detail, null, 1) : "–");

const row = ({ at, actor, action, subject, detail }) =>
  make(
    "tr",
    {},
    make("td", {}, moment(at)),
    make("td", {}, actor),
    make("td", {}, action),
    make("td", {}, subject),
    make("td", { class: "wrapped" }, inWords(detail)),
  );
