// The view of what the server does, made of what /v1/stats answers.

import { Chart, strip } from "./charts.js";
import { bar, byId, make, terms } from "./dom.js";
import { amount, bytes, count, duration, number, percent, spoken, span, waitsFor } from "./words.js";

const LATENCIES = [
  ["ttft", "TTFT", "time to first token"],
  ["itl", "ITL", "between tokens"],
  ["tpot", "TPOT", "per output token"],
  ["e2e", "Total", "to the last token"],
  ["queue", "Queue", "before the first step"],
];
const STEP_PARTS = ["schedule", "draft", "execute", "sample", "send"];
const OUTCOMES = ["completed", "cancelled", "rejected", "refused", "timed_out", "failed"];

let charts = null;

/** Draw everything anew. */
export function show(stats) {
  charts ??= {
    running: new Chart(byId("running-chart"), "Running sequences", "levels", number),
    waiting: new Chart(byId("waiting-chart"), "Waiting sequences", "levels", number),
    tokens: new Chart(byId("tokens-chart"), "Output tokens per second", "columns", number),
    ended: new Chart(byId("ended-chart"), "Requests that ended", "columns", number),
    kv: new Chart(byId("kv-chart"), "KV blocks in use", "levels", number),
    ttft: new Chart(byId("ttft-chart"), "TTFT, median of each second", "dots", duration),
    itl: new Chart(byId("itl-chart"), "ITL, median of each second", "dots", duration),
  };
  showCharts(stats);
  showTiles(stats);
  showLatency(stats);
  showBlocks(stats);
  showSteps(stats);
  showWaited(stats);
  showLevels(stats);
  showServer(stats);
}

function showCharts({ timeline, settings }) {
  const of = (name) => timeline.slice(-60).map((second) => second[name]);
  charts.running.show(of("running"));
  charts.waiting.show(of("waiting"));
  charts.tokens.show(of("output_tokens"));
  charts.ended.show(of("requests"));
  charts.kv.show(of("kv_used"));
  charts.ttft.show(of("ttft"), settings.slo?.ttft ?? null);
  charts.itl.show(of("itl"), settings.slo?.itl ?? null);
}

function showTiles({ now, minute, settings, timeline }) {
  const { rates, utilisation } = minute;
  const newest = timeline.at(-1);
  byId("running").textContent = number(now.running);
  byId("running-note").textContent = [
    settings.max_num_seqs === null ? null : `of ${number(settings.max_num_seqs)} places`,
    utilisation.batch === null ? null : `${amount(utilisation.batch)} in a step on average`,
  ]
    .filter(Boolean)
    .join(", ");
  byId("waiting").textContent = number(now.waiting);
  byId("waiting-note").replaceChildren(
    now.waiting ? count(now.waiting_tokens, "token") : "nobody waits",
    ...(now.held === null ? [] : ["; the first waits for ", ...awaited(now.held)]),
  );
  byId("tokens").textContent = number(newest?.output_tokens ?? 0);
  byId("tokens-note").textContent =
    `${amount(rates.output_tokens)} a second over the minute` +
    (minute.cost_per_million_tokens === null ? "" : `, ${amount(minute.cost_per_million_tokens)} per million`);
  byId("ended").textContent = number(newest?.requests ?? 0);
  const outcomes = OUTCOMES.filter((name) => minute.requests[name]);
  byId("ended-note").textContent = outcomes.length
    ? `${outcomes.map((name) => `${number(minute.requests[name])} ${spoken(name)}`).join(", ")} in the last minute`
    : "none in the last minute";
}

function showLatency({ minute, settings }) {
  byId("slo-head").hidden = settings.slo === null;
  byId("latency").replaceChildren(
    ...LATENCIES.map(([name, short, meaning]) => {
      const quantiles = minute.latency[name];
      const limit = settings.slo?.[name] ?? null;
      const cell = (value) =>
        make("td", { class: limit !== null && value !== null && value > limit ? "over" : null }, duration(value));
      return make(
        "tr",
        {},
        make("th", { scope: "row" }, short, make("small", {}, meaning)),
        cell(quantiles.p50),
        cell(quantiles.p95),
        cell(quantiles.p99),
        make("td", { class: "strip" }, strip(quantiles, limit)),
        settings.slo === null ? null : make("td", { class: "limit" }, limit === null ? "" : `≤ ${duration(limit)}`),
      );
    }),
  );
}

function showBlocks({ now, minute, settings }) {
  const { kv } = now;
  byId("kv-unit").textContent =
    `${number(kv.total)}${settings.block_size === null ? "" : ` of ${settings.block_size} tokens each`}`;
  stack(byId("kv-bar"), "KV blocks", [
    ["used", kv.used],
    ["cached", kv.cached],
    ["free", kv.free],
  ]);
  byId("kv-legend").replaceChildren(
    ...legend([
      ["used", "used", kv.used, kv.total],
      ["cached", "cached", kv.cached, kv.total],
      ["free", "free", kv.free, kv.total],
    ]),
    ...(kv.kept ? terms([["kept for clients", `${number(kv.kept)} of used and cached`]]) : []),
  );
  const asked = minute.prefix_queried_tokens;
  byId("prefix-note").textContent =
    settings.prefix_caching === false
      ? "Prefix caching is off."
      : asked
        ? `In the last minute ${percent(minute.prefix_hit_tokens / asked)} of ${count(asked, "prompt token")} ` +
          "were found in the prefix cache."
        : "No prompt was looked up in the prefix cache in the last minute.";
}

function showSteps({ minute, settings }) {
  const { steps, utilisation } = minute;
  const whole = STEP_PARTS.reduce((sum, name) => sum + steps[name], 0);
  stack(
    byId("step-bar"),
    "Time of steps",
    STEP_PARTS.map((name) => [name, steps[name]]),
  );
  byId("step-legend").replaceChildren(...legend(STEP_PARTS.map((name) => [name, name, steps[name], whole, duration])));
  const facts = [
    ["steps per second", amount(minute.rates.steps)],
    ["engine busy", percent(utilisation.busy)],
  ];
  if (steps.steps) facts.push(["a step takes", duration((steps.schedule + steps.draft + steps.execute + steps.sample) / steps.steps)]);
  if (utilisation.budget !== null) facts.push(["token budget used", percent(utilisation.budget)]);
  if (utilisation.memory !== null) facts.push(["memory bandwidth used", percent(utilisation.memory)]);
  if (utilisation.arithmetic !== null) facts.push(["arithmetic used", percent(utilisation.arithmetic)]);
  if (steps.preemptions) facts.push(["preemptions", number(steps.preemptions)]);
  if (settings.target_itl !== null) facts.push(["target ITL", duration(settings.target_itl)]);
  byId("step-facts").replaceChildren(...terms(facts));
}

function showWaited({ minute }) {
  const waited = Object.entries(minute.waited).sort((one, other) => other[1] - one[1]);
  const most = waited.length ? waited[0][1] : 0;
  byId("waited").replaceChildren(
    ...(waited.length
      ? waited.map(([name, seconds]) => measured(awaited(name), duration(seconds), seconds / most, "queue"))
      : [make("p", { class: "note" }, "Whatever came could begin at the next step.")]),
  );
}

function showLevels({ minute, settings }) {
  const { slo } = minute;
  byId("slo-card").hidden = slo === null;
  if (slo === null) return;
  byId("slo-unit").textContent = Object.entries(settings.slo)
    .map(([name, limit]) => `${name.toUpperCase()} ≤ ${duration(limit)}`)
    .join(", ");
  byId("attainment").textContent = percent(slo.attainment);
  byId("slo-note").textContent = slo.judged
    ? `${number(slo.good)} of ${count(slo.judged, "request")} in the last minute; goodput ${amount(slo.goodput)} ` +
      `requests and ${amount(slo.token_goodput)} tokens a second`
    : "No request was judged in the last minute.";
  const missed = Object.entries(slo.missed).filter(([, times]) => times);
  byId("missed").replaceChildren(
    ...missed.map(([name, times]) =>
      measured([name === "failed" ? "failed" : `missed ${name.toUpperCase()}`], number(times), times / slo.judged, "bad"),
    ),
  );
}

function showServer({ uptime, restarts, settings, processes, life }) {
  const facts = [
    ["up for", span(uptime)],
    ["requests since then", number(Object.values(life.requests).reduce((sum, each) => sum + each, 0))],
    ["output tokens", number(life.output_tokens)],
    ["engine restarts", number(restarts)],
    ["memory", `${bytes(processes.engine?.resident_bytes)} engine, ${bytes(processes.api?.resident_bytes)} server`],
  ];
  const how = [settings.dtype, settings.quantization === "none" ? null : settings.quantization].filter(Boolean);
  if (how.length) facts.push(["weights", how.join(", ")]);
  if (settings.threads !== null) facts.push(["threads", number(settings.threads)]);
  if (settings.max_model_len !== null) facts.push(["longest sequence", count(settings.max_model_len, "token")]);
  byId("server-facts").replaceChildren(...terms(facts));
}

/** A bar of parts, each in proportion to its value. */
function stack(place, label, parts) {
  const whole = parts.reduce((sum, [, value]) => sum + value, 0);
  place.setAttribute(
    "aria-label",
    `${label}: ${parts.map(([name, value]) => `${name} ${percent(whole ? value / whole : 0)}`).join(", ")}`,
  );
  if (place.children.length !== parts.length) {
    place.replaceChildren(...parts.map(([name]) => make("span", { class: name })));
  }
  parts.forEach(([, value], index) => {
    place.children[index].hidden = value === 0;
    place.children[index].style.flexGrow = whole ? value / whole : 0;
  });
}

function legend(parts) {
  return parts.map(([kind, name, value, whole, say = number]) =>
    make(
      "div",
      {},
      make("dt", {}, make("span", { class: `swatch ${kind}` }), name),
      make("dd", {}, `${say(value)} `, make("small", {}, whole ? percent(value / whole) : "–")),
    ),
  );
}

function measured(name, value, share, kind) {
  return make(
    "div",
    { class: "measured" },
    make("span", {}, ...name),
    make("span", { class: "value" }, value),
    bar(share, kind),
  );
}

function awaited(code) {
  const [what, option] = waitsFor(code);
  return option ? [what, " ", make("code", {}, option)] : [what];
}
