// The page of a server: its views, and what is asked for each of them.

import { get, hasKey } from "./api.js";
import * as playground from "./chat.js";
import { byId, make } from "./dom.js";
import * as live from "./live.js";
import { requests } from "./requests.js";
import { begin } from "./shell.js";

// The model whose figures are shown; null: the server's first.
let shown = null;

async function look(view, again) {
  const stats = await statsOf(shown);
  const { ready, settings } = stats;
  offer(stats.models, stats.model);
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

/** The figures of a model. Where the server has it no more, those of the first. */
async function statsOf(model) {
  if (model === null) return get("v1/stats");
  try {
    return await get(`v1/stats?model=${encodeURIComponent(model)}`);
  } catch (problem) {
    if (problem.status !== 404) throw problem;
    shown = null;
    return get("v1/stats");
  }
}

/** Offer the models of a server that has several. */
function offer(models, current) {
  const choice = byId("shown-model");
  byId("shown").hidden = models.length < 2;
  if ([...choice.options].map((option) => option.value).join("\n") !== models.join("\n")) {
    choice.replaceChildren(...models.map((name) => make("option", { value: name }, name)));
  }
  if (current !== null) choice.value = current;
}

function choose(view, id) {
  if (view === "requests") requests.choose(id);
}

byId("shown-model").addEventListener("change", (event) => {
  shown = event.target.value;
});
playground.begin();
begin({ views: ["live", "requests", "playground"], choose, look });
