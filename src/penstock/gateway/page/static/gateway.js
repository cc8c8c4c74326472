// The page of a gateway: its views, and what is asked for each of them.

import * as admin from "./admin.js";
import { get } from "./api.js";
import * as playground from "./chat.js";
import * as fleet from "./fleet.js";
import { begin } from "./shell.js";
import { ways } from "./ways.js";
import { count, number } from "./words.js";

async function look(view, again) {
  if (view() === "admin") return admin.look();
  const told = await get("v1/fleet");
  const there = told.replicas.filter((each) => each.state === "ready").length;
  const ready = told.replicas.some((each) => ["ready", "stale"].includes(each.state));
  if (ready && again) await playground.loadModels();
  fleet.note(told);
  if (view() === "fleet") fleet.show(told);
  if (view() === "requests") await ways.refresh();
  return {
    at: told.at,
    ready,
    state: `${number(there)} of ${count(told.replicas.length, "replica")} ready`,
    version: `Penstock ${told.version}, a gateway`,
    why: ready ? null : whyNot(told.replicas),
  };
}

function whyNot(replicas) {
  if (!replicas.length) return "No replica can answer: none has joined.";
  return `No replica can answer. ${replicas.map((each) => `${each.url}: ${each.why}`).join("; ")}.`;
}

function choose(view, id) {
  if (view === "requests") ways.choose(id);
  if (view === "admin") admin.choose(id);
}

playground.begin();
admin.begin();
begin({ views: ["fleet", "requests", "playground", "admin"], keyless: ["admin"], choose, look });
