// Talks to /admin/v1 with the key of an administrator. The key is in this variable and nowhere else: a reload forgets it.

import { Problem, once } from "./api.js";

const ROOT = "admin/v1/";

let session = null;
let ended = () => {};

/** `listener` is told why, once the key is taken no longer. */
export function whenEnded(listener) {
  ended = listener;
}

/** { id, role } of who is signed in; null for nobody. */
export const who = () => session?.who ?? null;

/** Whether the one who is signed in may change anything. */
export const mayChange = () => session?.who.role === "admin";

/** Begin with a key. Raises a Problem where it is no administrator's. */
export async function signIn(key) {
  const response = await once(`${ROOT}administrator`, {}, key);
  session = { key, who: await response.json() };
}

export function signOut() {
  session = null;
}

/** What is at a path below /admin/v1; `query` are pairs, of which those without a value are left out. */
export async function read(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  return answer(given.length ? `${path}?${new URLSearchParams(given)}` : path, {});
}

/** Change something; resolves to what is so then. */
export function change(method, path, body = null) {
  const content = body === null ? {} : { headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  return answer(path, { method, ...content });
}

async function answer(path, options) {
  const used = session;
  try {
    return await (await once(ROOT + path, options, used?.key ?? null)).json();
  } catch (problem) {
    if (problem.status === 401 && used !== null && used === session) {
      session = null;
      ended(problem.message);
    }
    throw problem instanceof Problem ? problem : new Problem("The server's answer was cut off.", { away: true });
  }
}
