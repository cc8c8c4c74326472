// What every page has: views, turns of asking, the key, and what is said while the server does not answer.

import { Problem, askWith, forgetKey, hasKey } from "./api.js";
import { byId } from "./dom.js";
import { clock } from "./words.js";

const USUAL_MS = 1000;
const MOST_MS = 5000;
const UNASKED = "unasked";

let page = null;
let view = null;
let pause = USUAL_MS;
let timer = null;
let asking = false;
let seen = null;
// Ends the question for a key without one.
let leaveQuestion = null;

/**
 * Begin. `views` are named, and the first has no title of its own. `choose(view, id)` is told what else an address names.
 * `look(view, again)` asks the server, shows what it says in the view that `view()` names then, and resolves to { at,
 * ready, state, version, why }; `again`: for the first time, or since it was away, so that it may be another server.
 * `keyless` are the views that need no key of this page.
 */
export function begin(given) {
  page = { keyless: [], ...given };
  askWith(askForKey);
  byId("forget").addEventListener("click", () => {
    forgetKey();
    // What the key has shown is forgotten with it.
    location.reload();
  });
  document.addEventListener("visibilitychange", () => !document.hidden && soon());
  window.addEventListener("hashchange", route);
  route();
  if (view === null) location.hash = `#${page.views[0]}`;
}

function route() {
  const [name, id] = location.hash.slice(1).split("/");
  // Whatever else is behind the mark is a place within the page.
  if (name !== "" && !page.views.includes(name)) return;
  const before = view;
  view = name || page.views[0];
  for (const each of page.views) {
    byId(`view-${each}`).hidden = each !== view;
    const link = document.querySelector(`nav a[href="#${each}"]`);
    if (each === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = view === page.views[0] ? "Penstock" : `${view[0].toUpperCase()}${view.slice(1)} · Penstock`;
  if (page.keyless.includes(view)) leaveQuestion?.();
  page.choose(view, id ? decoded(id) : null);
  if (view !== before) window.scrollTo(0, 0);
  soon();
}

/** A part of the address, which anybody may have written. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Ask now, instead of at the next turn. */
function soon() {
  clearTimeout(timer);
  turn();
}

async function turn() {
  if (asking) return;
  asking = true;
  const before = view;
  try {
    if (!document.hidden) await look();
  } finally {
    asking = false;
  }
  // What is seen now was not asked for yet.
  if (view !== before && !document.hidden) return turn();
  // Who does not see the page needs no figures; it goes on when it is seen again.
  if (!document.hidden) timer = setTimeout(turn, pause);
}

async function look() {
  try {
    const now = await page.look(() => view, !seen?.ready || pause !== USUAL_MS);
    seen = now;
    byId("forget").hidden = !hasKey();
    byId("dot").className = `dot ${now.ready ? "good" : "waits"}`;
    say("state", now.state);
    byId("version").textContent = now.version;
    banner(now.why);
    document.body.classList.remove("stale");
    pause = USUAL_MS;
  } catch (problem) {
    if (problem.code === UNASKED) return;
    showProblem(problem);
    pause = Math.min(pause * 1.5, MOST_MS);
  }
}

function showProblem(problem) {
  const since = seen === null ? "" : ` What is shown is from ${clock(seen.at)}.`;
  byId("dot").className = "dot bad";
  say("state", problem.away ? "away" : "not available");
  banner(`${problem.message} This page keeps trying.${since}`);
  document.body.classList.add("stale");
  if (!("away" in problem)) console.error(problem);
}

function banner(text) {
  byId("banner").hidden = text === null;
  say("banner", text ?? "");
}

/** Set a text that is read out when it changes. */
function say(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

/** Ask for a key in the dialog; resolves to it. */
function askForKey(why) {
  const dialog = byId("key-dialog");
  const [form, field] = [byId("key-form"), byId("key")];
  byId("key-message").textContent = why;
  field.value = "";
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve, reject) => {
    const end = () => {
      leaveQuestion = null;
      dialog.onclose = null;
      dialog.close();
    };
    leaveQuestion = () => {
      end();
      reject(new Problem("The key was not given.", { code: UNASKED }));
    };
    form.onsubmit = (event) => {
      event.preventDefault();
      const key = field.value.trim();
      if (!/^[\x21-\x7e]+$/.test(key)) {
        byId("key-message").textContent = "A key is one word of plain letters, digits and signs.";
        return;
      }
      end();
      resolve(key);
    };
    // Nothing can be shown without a key, so the question stays.
    dialog.oncancel = (event) => event.preventDefault();
    dialog.onclose = () => dialog.showModal();
  });
}
