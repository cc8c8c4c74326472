// The playground: a conversation with the model, and beside each answer the account of its request.

import { shortAccount } from "./account.js";
import { Problem, chat, get } from "./api.js";
import { byId, make } from "./dom.js";
import { amount, count, duration } from "./words.js";

const STARTERS = ["Write a haiku about rain.", "Write a haiku about an old bridge in the fog."];
const LOOK_MS = 1000;
// An account ends a moment after its answer's last byte.
const LOOKS_AFTER = 10;
const LOOK_AFTER_MS = 150;

let messages = [];
let running = null;

/** Get ready: the buttons, and the models that there are. */
export function begin() {
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    say(byId("message").value);
  });
  byId("message").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    say(byId("message").value);
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("new-chat").addEventListener("click", clear);
  clear();
}

/** Fill the choice of models, if it is empty or another server is there. Raises a Problem where the server is away. */
export async function loadModels() {
  const { data } = await get("v1/models");
  const choice = byId("model");
  const names = data.map((model) => model.id);
  if (names.join("\n") === [...choice.options].map((option) => option.value).join("\n")) return;
  choice.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
}

function clear() {
  running?.abort();
  setRunning(null);
  messages = [];
  byId("turns").replaceChildren(
    make(
      "div",
      { class: "empty" },
      make("h2", {}, "Talk to the model"),
      make("p", {}, "Beside each answer stands where its time went."),
      ...STARTERS.map((text) => make("button", { type: "button", class: "starter", onclick: () => say(text) }, text)),
    ),
  );
}

/** What is asked of the model; a field that is left empty has the server's default. */
function fieldsOf(asked) {
  const fields = { messages: asked, stream: true, stream_options: { include_usage: true } };
  if (byId("model").value) fields.model = byId("model").value;
  for (const [name, id] of [["temperature", "temperature"], ["max_tokens", "max-tokens"], ["seed", "seed"]]) {
    const { value, validity } = byId(id);
    if (validity.badInput) throw new Problem(`${name} is not a number.`);
    if (value === "") continue;
    fields[name] = Number(value);
    if (Math.abs(fields[name]) > Number.MAX_SAFE_INTEGER) throw new Problem(`${name} has more digits than a browser counts.`);
  }
  return fields;
}

async function say(text) {
  if (running !== null || !text.trim()) return;
  const turn = new Turn(text);
  if (!messages.length) byId("turns").replaceChildren();
  byId("turns").append(turn.element);
  byId("message").value = "";
  const control = new AbortController();
  setRunning(control);
  turn.element.scrollIntoView({ block: "end" });
  const asked = [...messages, { role: "user", content: text }];
  try {
    await turn.answer(fieldsOf(asked), control.signal);
  } catch (problem) {
    turn.fail(problem);
  } finally {
    // A new chat may have begun meanwhile.
    if (running === control) {
      setRunning(null);
      if (turn.text) messages = [...asked, { role: "assistant", content: turn.text }];
      else if (!byId("message").value) byId("message").value = text;
      byId("chat-status").textContent = turn.summary.textContent;
    }
  }
  await turn.lookAfterwards();
}

function setRunning(control) {
  running = control;
  byId("stop").hidden = control === null;
  byId("send").hidden = control !== null;
  byId("message").focus();
}

/** Change the page, and where its end was seen, have it seen afterwards. */
function keepingEnd(change) {
  const page = document.scrollingElement;
  const atEnd = page.scrollHeight - page.scrollTop - page.clientHeight < 80;
  change();
  if (atEnd) page.scrollTop = page.scrollHeight;
}

/** One question, its answer, and the account beside it. */
class Turn {
  constructor(question) {
    this.text = "";
    this.id = `page-${crypto.getRandomValues(new Uint32Array(3)).join("-")}`;
    this.words = document.createTextNode("");
    this.thoughts = document.createTextNode("");
    this.reasoning = make(
      "details",
      { class: "reasoning", hidden: true },
      make("summary", {}, "Reasoning"),
      make("p", {}, this.thoughts),
    );
    this.problem = make("p", { class: "problem", role: "alert", hidden: true });
    this.summary = make("p", { class: "summary" }, "waiting for the first token …");
    this.seed = make("p", { class: "note", hidden: true });
    this.account = make("div", { class: "account-place" });
    this.reply = make("div", { class: "answer-text" }, this.words);
    this.element = make(
      "article",
      { class: "turn runs" },
      make("p", { class: "question" }, question),
      make("div", { class: "answer" }, this.reasoning, this.reply, this.problem),
      make("aside", { "aria-label": "Where the time of this answer went" }, this.summary, this.seed, this.account),
    );
  }

  /** Ask, and show the answer as it comes. */
  async answer(fields, signal) {
    const began = performance.now();
    const looking = setInterval(() => this.look(), LOOK_MS);
    let first = null;
    let last = null;
    let tokens = 0;
    let finish = null;
    try {
      for await (const event of chat(fields, this.id, signal, (id) => (this.id = id))) {
        const choice = event.choices[0];
        const content = choice?.delta.content ?? "";
        const thought = choice?.delta.reasoning_content ?? "";
        if (event.usage) tokens = event.usage.completion_tokens;
        if (event.seed !== undefined) this.tellSeed(event.seed);
        if (choice?.finish_reason) finish = choice.finish_reason;
        if (!content && !thought) continue;
        last = performance.now();
        first ??= last;
        if (!event.usage) tokens += 1;
        this.append(content, thought);
        this.sum(began, first, last, tokens, null);
      }
      this.sum(began, first, last, tokens, finish);
    } finally {
      clearInterval(looking);
      this.element.classList.remove("runs");
    }
  }

  append(content, thought) {
    this.text += content;
    keepingEnd(() => {
      if (thought) this.reasoning.hidden = false;
      this.thoughts.appendData(thought);
      this.words.appendData(content);
    });
  }

  /** With it, the same conversation gets the same answer. */
  tellSeed(seed) {
    this.seed.textContent = `seed ${seed}`;
    this.seed.hidden = false;
  }

  /** The figures as they are seen from here. */
  sum(began, first, last, tokens, finish) {
    const parts = [];
    if (first !== null) parts.push(`first token after ${duration((first - began) / 1e3)}`);
    if (tokens > 1 && last > first) parts.push(`${amount(((tokens - 1) * 1e3) / (last - first))} tokens/s`);
    parts.push(count(tokens, "token"));
    if (finish === "length") parts.push("cut off at the most tokens that it may have");
    this.summary.textContent = parts.join(" · ");
  }

  fail(problem) {
    this.element.classList.remove("runs");
    const stopped = problem.name === "AbortError";
    if (stopped) {
      this.summary.textContent = this.text ? `${this.summary.textContent} · stopped` : "stopped";
      return;
    }
    if (!(problem instanceof Problem)) console.error(problem);
    this.summary.textContent = this.text ? `${this.summary.textContent} · not complete` : "no answer";
    this.problem.textContent = problem instanceof Problem ? problem.message : "The page failed on this answer.";
    this.problem.hidden = false;
  }

  /** Draw the account as it is now; true when it is complete. */
  async look() {
    try {
      const told = await get(`v1/requests/${encodeURIComponent(this.id)}/explain`);
      keepingEnd(() => this.account.replaceChildren(shortAccount(told)));
      return told.outcome !== null;
    } catch {
      // The answer stands without it.
      return false;
    }
  }

  async lookAfterwards() {
    for (let looks = 0; looks < LOOKS_AFTER; looks += 1) {
      if (await this.look()) return;
      await new Promise((resolve) => setTimeout(resolve, LOOK_AFTER_MS));
    }
  }
}
