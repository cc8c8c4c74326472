// Talks to the server, with the key that the user has given. The key is in this tab's session storage and nowhere else.

const KEY = "penstock.key";
const ANSWER_MS = 10_000;

/** What went wrong, in one sentence; `away` where no server answered, `status` where one did. */
export class Problem extends Error {
  constructor(message, { away = false, status = 0, code = null } = {}) {
    super(message);
    Object.assign(this, { away, status, code });
  }
}

let asking = null;
let ask = null;

/** `asker` asks the user for a key: it is given a sentence, and resolves to the key, or raises a Problem. */
export function askWith(asker) {
  ask = asker;
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;

export function forgetKey() {
  sessionStorage.removeItem(KEY);
}

/** The JSON answer to a GET. */
export async function get(path) {
  const response = await send(path, {}, () => AbortSignal.timeout(ANSWER_MS));
  try {
    return await response.json();
  } catch {
    throw new Problem("The server's answer was cut off.", { away: true });
  }
}

/**
 * The events of a streamed chat, each as the object that it carries. `onHead` is given the request's id once the
 * response begins.
 */
export async function* chat(body, requestId, signal, onHead) {
  const response = await send(
    "v1/chat/completions",
    {
      method: "POST",
      headers: { "content-type": "application/json", "x-request-id": requestId },
      body: JSON.stringify(body),
    },
    () => signal,
  );
  onHead(response.headers.get("x-request-id") ?? requestId);
  for await (const data of events(response)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Problem(event.error.message, { status: 200, code: event.error.code });
    yield event;
  }
  throw new Problem("The connection ended before the answer was complete.", { away: true });
}

/** The data of server-sent events. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const pieces = (rest + value).split("\n\n");
      rest = pieces.pop();
      for (const piece of pieces) {
        if (piece.startsWith("data: ")) yield piece.slice(6);
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The connection broke before the answer was complete.", { away: true });
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** A good response. Asks for a key as often as the server wants another one. */
async function send(path, options, signal) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    try {
      return await once(path, options, key, signal());
    } catch (problem) {
      if (problem.status !== 401) throw problem;
      await newKey(key, problem.message);
    }
  }
}

/** A good response with this key, or with none (null). Raises a Problem for every other one. */
export async function once(path, options = {}, key = null, signal = AbortSignal.timeout(ANSWER_MS)) {
  const headers = { ...options.headers, ...(key === null ? {} : { authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, signal, cache: "no-store", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not answer.", { away: true });
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

async function problemOf(response) {
  const fallback = `The server answered with status ${response.status}.`;
  try {
    const { error } = await response.json();
    return new Problem(error.message ?? fallback, { status: response.status, code: error.code ?? null });
  } catch {
    return new Problem(fallback, { status: response.status });
  }
}

/** Until there is another key than `used`; everyone who needs one waits for the same question. */
async function newKey(used, why) {
  if (sessionStorage.getItem(KEY) !== used) return;
  asking ??= ask(used === null ? "" : why)
    .then((key) => sessionStorage.setItem(KEY, key))
    .finally(() => {
      asking = null;
    });
  await asking;
}
