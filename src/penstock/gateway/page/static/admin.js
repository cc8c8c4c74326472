// The administrator's view: who is signed in, and the panels that they see.

import { signIn, signOut, whenEnded, who } from "./admin_api.js";
import { Problem, once } from "./api.js";
import { audit } from "./audit.js";
import { byId, make } from "./dom.js";
import { administrators } from "./keys.js";
import { limits } from "./limits.js";
import { spending } from "./spending.js";
import { tenants } from "./tenants.js";

const PANELS = { tenants, administrators, spending, limits, audit };
const READ = { admin: "an administrator", auditor: "an auditor, who changes nothing" };

let wanted = { name: "tenants", argument: null };
// The panel that is shown; null for none.
let shown = null;

export function begin() {
  whenEnded((why) => leave(why));
  byId("sign-out").addEventListener("click", () => {
    signOut();
    leave(null);
  });
  byId("sign-in").addEventListener("submit", async (event) => {
    event.preventDefault();
    const field = byId("admin-key");
    const key = field.value.trim();
    if (!/^[\x21-\x7e]+$/.test(key)) return say("sign-in-problem", "A key is one word of plain letters, digits and signs.");
    field.value = "";
    try {
      await signIn(key);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      return say("sign-in-problem", problem.message);
    }
    await enter();
  });
}

/** Show the panel, and what of it, that an address names: "tenants", or "tenants:acme.search". */
export function choose(id) {
  const [name, ...rest] = (id ?? "").split(":");
  wanted = { name: Object.hasOwn(PANELS, name) ? name : "tenants", argument: rest.length ? rest.join(":") : null };
  if (who() !== null) open();
}

/** Whether the gateway is ready; what changes in the panel by itself is asked for anew. */
export async function look() {
  const why = await notReady();
  if (who() !== null && shown !== null) await attempt(() => PANELS[shown].tick?.());
  const state = why === null ? "ready" : "not ready";
  return { at: Date.now() / 1e3, ready: why === null, state, version: "Penstock, a gateway", why };
}

async function notReady() {
  try {
    await once("health/ready");
    return null;
  } catch (problem) {
    if (problem.away !== false) throw problem;
    return problem.message;
  }
}

async function enter() {
  say("sign-in-problem", null);
  byId("sign-in").hidden = true;
  byId("administration").hidden = false;
  const { id, role } = who();
  byId("admin-who").textContent = `${id}, ${READ[role]}`;
  await open();
}

/** Forget all that was shown, and ask for a key. */
function leave(why) {
  shown = null;
  byId("admin-panel").replaceChildren();
  // But for a new key: the one who rotates the own key has to see it.
  for (const each of document.querySelectorAll("body > dialog:not([id], :has(.secret))")) each.close();
  say("admin-problem", null);
  byId("administration").hidden = true;
  byId("sign-in").hidden = false;
  say("sign-in-problem", why);
  byId("admin-key").focus();
}

async function open() {
  const { name, argument } = wanted;
  for (const link of byId("admin-tabs").children) {
    if (link.getAttribute("href") === `#admin/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const moves = shown === name && PANELS[name].move !== undefined;
  shown = name;
  if (moves) return attempt(() => PANELS[name].move(argument));
  // What an older panel is still told is drawn where nobody sees it.
  const place = make("div");
  byId("admin-panel").replaceChildren(place);
  await attempt(() => PANELS[name].show(place, argument));
}

/** Do it, and say what the API says where it refuses. */
async function attempt(work) {
  try {
    await work();
    say("admin-problem", null);
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    // Where the key is taken no longer, that was said.
    if (who() !== null) say("admin-problem", problem.message);
  }
}

function say(id, text) {
  byId(id).hidden = text === null;
  if (byId(id).textContent !== (text ?? "")) byId(id).textContent = text ?? "";
}
