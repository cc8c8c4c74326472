// The page of a server: its views, and what is asked for each of them.

import { get, hasKey } from "./api.js";
import * as playground from "./chat.js";
import { byId } from "./dom.js";
import * as live from "./live.js";
import { requests } from "./requests.js";
import { begin } from "./shell.js";

async function look(view, again) {
  const stats = await get("v1/stats");
  const { ready, settings } = stats;
  byId("docs-link").hidden = hasKey();
  if (ready && again) await playground.loadModels();
  if (view() === "live") live.show(stats);
  if (view() === "requests") await requests.refresh();
  const state = ready ? "ready" : "not ready";
  return {
    at: stats.at,
    ready,
    state: stats.model === null ? state : `${stats.model} · ${state}`,
    version:
      `Penstock ${stats.version}` + (settings.simulated ? `; simulated on ${settings.simulated}: nothing is computed` : ""),
    why: ready ? null : (stats.why_not ?? "The server is not ready."),
  };
}

function choose(view, id) {
  if (view === "requests") requests.choose(id);
}

playground.begin();
begin({ views: ["live", "requests", "playground"], choose, look });
