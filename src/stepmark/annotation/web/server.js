// Asks the server, and keeps the clicks that could not be sent until they are.

/** Every failure says what to do; status 0 is a server that does not answer. */
export class Failure extends Error {
  constructor(status, data) {
    super(data?.error ?? (status ? `The server answered ${status}.` : "The server does not answer."));
    this.status = status;
    this.data = data;
  }

  /** Whether the same may work a little later: no answer, too many requests, or a server, proxy or database that is away. */
  get isAway() {
    return this.status === 0 || this.status === 429 || this.status > 500;
  }
}

const TOKEN = "stepmark:token";

/** The token of the link that this tab was opened with, or of the one that this browser used last. */
export function token() {
  const [, given] = /^#([\w-]{20,})$/.exec(location.hash) ?? [];
  if (given) {
    sessionStorage.setItem(TOKEN, given);
    localStorage.setItem(TOKEN, given);
    history.replaceState(null, "", "#/");
  }
  return given ?? sessionStorage.getItem(TOKEN) ?? localStorage.getItem(TOKEN);
}

async function fetched(method, path, body) {
  const headers = { Authorization: `Bearer ${token()}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  try {
    return await fetch(path, { method, headers, body: body && JSON.stringify(body), cache: "no-store" });
  } catch {
    throw new Failure(0, null);
  }
}

/** One request. */
export async function call(method, path, body) {
  const answer = await fetched(method, path, body);
  const data = await answer.json().catch(() => null);
  if (!answer.ok) throw new Failure(answer.status, data);
  return data;
}

/** A file of the server's, for the browser's downloads. */
export async function download(path) {
  const answer = await fetched("GET", path);
  if (!answer.ok) throw new Failure(answer.status, await answer.json().catch(() => null));
  const [, name] = /filename="([^"]+)"/.exec(answer.headers.get("Content-Disposition"));
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(await answer.blob()), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

/** A GET for a person who waits: asks again while the server is away; `away()` is called each time that it is. */
export async function ask(path, away = () => {}) {
  for (let pause = 0.5; ; pause = Math.min(pause * 2, 8)) {
    try {
      return await call("GET", path);
    } catch (failure) {
      if (!failure.isAway) throw failure;
      away(failure);
      await new Promise((done) => setTimeout(done, 1000 * pause));
    }
  }
}

/** A random name also where a page has no `crypto.randomUUID`: http on another host than localhost. */
function newId() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * The clicks of one person. Each is in the browser's storage before it is sent, under a key of its own, and leaves it when the server has
 * answered; its id makes sending twice harmless. `on`: `state()`, `answered(entry, state)`, `refused(entry, failure)`.
 */
export class Outbox {
  #entries = [];
  #sending = null;
  #timer = null;
  #pause = 0.5;
  #last = 0;
  trouble = null; // null, or in words why nothing can be sent now

  constructor(name, on) {
    this.prefix = `stepmark:unsent:${name}:`;
    this.on = on;
    for (const key of Object.keys(localStorage).filter((one) => one.startsWith(this.prefix)).sort()) {
      this.#entries.push({ ...JSON.parse(localStorage.getItem(key)), key });
    }
    addEventListener("online", () => this.flush());
    document.addEventListener("visibilitychange", () => document.hidden || this.flush());
  }

  get unsent() {
    return this.#entries.length;
  }

  of(item) {
    return this.#entries.filter((entry) => entry.item === item);
  }

  add(item, change, seconds, deciding) {
    // Two clicks within one millisecond keep their order.
    this.#last = Math.max(Date.now(), this.#last + 1);
    const entry = { item, id: newId(), change, seconds, deciding };
    const key = `${this.prefix}${String(this.#last).padStart(15, "0")}:${entry.id}`;
    try {
      localStorage.setItem(key, JSON.stringify(entry));
    } catch {
      this.trouble = "the browser's storage is full: keep this tab open until all is saved";
    }
    this.#entries.push({ ...entry, key });
    this.flush();
  }

  /** Send what waits, in order; done when nothing is left that can be sent now. */
  flush() {
    clearTimeout(this.#timer);
    this.on.state();
    this.#sending ??= this.#send().finally(() => {
      this.#sending = null;
      this.on.state();
    });
    return this.#sending;
  }

  async #send() {
    while (this.#entries.length && (await this.#sendFirst()));
  }

  async #sendFirst() {
    const [entry] = this.#entries;
    const { key, ...sent } = entry;
    let answer;
    try {
      answer = await call("POST", "/api/changes", sent);
    } catch (failure) {
      if (failure.isAway || failure.status === 500) {
        this.trouble = failure.status ? failure.message : "offline";
        this.#timer = setTimeout(() => this.flush(), 1000 * this.#pause);
        this.#pause = Math.min(this.#pause * 2, 10);
        return false;
      }
      if (failure.status === 401) {
        this.trouble = "this link is not valid any more";
        return false;
      }
      this.#forget(key);
      this.on.refused(entry, failure);
      return true;
    }
    this.trouble = null;
    this.#pause = 0.5;
    this.#forget(key);
    this.on.answered(entry, answer);
    return true;
  }

  #forget(key) {
    localStorage.removeItem(key);
    this.#entries = this.#entries.filter((one) => one.key !== key);
  }
}
