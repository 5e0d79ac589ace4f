// Asks the server. Every failure is a `Failure` that says what to do; status 0 is a server that does not answer.

let session = { name: null, csrf: "" };

export class Failure extends Error {
  constructor(status, data, wait = null) {
    super(data?.error ?? (status ? `The server answered ${status}.` : "The server does not answer."));
    this.status = status;
    this.data = data;
    this.wait = wait; // seconds that the server asks to wait
  }
}

/** Whose page this is. */
export function setSession({ name, csrf }) {
  session = { name, csrf };
}

/** One request. `body`: data for JSON, a `Blob` as it is. */
export async function call(method, path, body) {
  try {
    return await once(method, path, body);
  } catch (failure) {
    if (failure.status !== 403 || method === "GET" || !session.name || !(await renewed())) throw failure;
    return once(method, path, body);
  }
}

/** After a new login in another tab: true when it is the same account with another token. */
async function renewed() {
  const me = await once("GET", "/api/me");
  // Another account's page would send this one's work under that one's name.
  if (me.name !== session.name) location.reload();
  const isNew = me.name === session.name && me.csrf !== session.csrf;
  setSession(me);
  return isNew;
}

async function once(method, path, body) {
  const headers = { Accept: "application/json" };
  if (method !== "GET") headers["X-CSRF-Token"] = session.csrf;
  const raw = body instanceof Blob;
  if (body !== undefined && !raw) headers["Content-Type"] = "application/json";
  let answer, data;
  try {
    answer = await fetch(path, { method, headers, body: body === undefined || raw ? body : JSON.stringify(body), cache: "no-store" });
    data = answer.headers.get("Content-Type")?.startsWith("application/json") ? await answer.json() : null;
  } catch {
    throw new Failure(0, null);
  }
  if (answer.ok) return data;
  const wait = Number.parseFloat(answer.headers.get("Retry-After") ?? "");
  throw new Failure(answer.status, data, Number.isNaN(wait) ? null : wait);
}

const watch = { login: null, offline: null };

/** Who is told: `login()` shows the form and resolves when somebody is logged in; `offline(isOffline)`. */
export function onTrouble(handlers) {
  Object.assign(watch, handlers);
}

export const sleep = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

/** The same for a person who waits: logs in when it must, waits when told to, and asks again while the server is away (GET only). */
export async function ask(method, path, body) {
  for (let pause = 0.5; ; pause = Math.min(pause * 2, 8)) {
    try {
      const data = await call(method, path, body);
      watch.offline?.(false);
      return data;
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      if (failure.status === 401 && watch.login) await watch.login();
      else if (failure.status === 429) await sleep(failure.wait ?? pause);
      else if (method === "GET" && (failure.status === 0 || failure.status >= 502)) {
        watch.offline?.(true);
        await sleep(pause);
      } else throw failure;
    }
  }
}
