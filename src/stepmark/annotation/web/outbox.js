// Changes on their way to the server. Each is in the browser's storage before anything else happens and leaves it when the
// server has answered, so that a closed tab, a crash or a server that is away loses none; its id makes sending twice harmless.

import { Failure, call } from "./api.js";

const MOST = 100; // changes in one request
const LARGEST = 100_000; // bytes of one request, below the server's limit

/** A random UUID also where a page has no `crypto.randomUUID`: http on another host than localhost. */
export function uuid() {
  if (crypto.randomUUID) return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}

/**
 * The changes of one account. One key a change, so that two tabs never write over each other.
 *
 * `on`: `state(words)` when the save state changes, `acknowledged(entry, answer)`, `clash(item)` when another tab or browser
 * changed the item, `refused(entry, failure)`, `login()` which resolves when the session holds again.
 */
export class Outbox {
  #entries = [];
  #held = new Map(); // item -> why its changes are not sent
  #sending = false;
  #timer = null;
  #pause = 0.5;
  #last = 0;

  constructor(account, on, storage = localStorage) {
    this.prefix = `stepmark:unsent:${account}:`;
    this.on = on;
    this.storage = storage;
    this.trouble = null; // null, "offline", "login", "busy", "storage"
    for (let at = 0; at < storage.length; at++) {
      const key = storage.key(at);
      if (!key.startsWith(this.prefix)) continue;
      try {
        this.#entries.push({ ...JSON.parse(storage.getItem(key)), key });
      } catch {
        // Not ours: nothing of ours is unreadable, a key is written whole.
      }
    }
    this.#entries.sort((one, other) => (one.key < other.key ? -1 : 1));
    addEventListener("online", () => this.flush());
    document.addEventListener("visibilitychange", () => document.hidden || this.flush());
  }

  get size() {
    return this.#entries.length;
  }

  of(item) {
    return this.#entries.filter((entry) => entry.item === item);
  }

  held(item) {
    return this.#held.get(item) ?? null;
  }

  get heldItems() {
    return [...this.#held.keys()];
  }

  add(item, version, change, seconds) {
    const entry = { item, id: uuid(), version, change, seconds };
    this.#keep(entry);
    this.#entries.push(entry);
    this.flush();
    return entry;
  }

  /** Forget the changes of an item, or one of them: they are stored, or the annotator does not want them. */
  drop(item, ids = null) {
    const going = this.of(item).filter((entry) => !ids || ids.has(entry.id));
    for (const entry of going) this.#forget(entry);
    if (!this.of(item).length || !ids) this.#held.delete(item);
    this.#tell();
  }

  /** Put an item's changes on top of another version, in their order and with their ids. */
  rebase(item, entries, version) {
    const wanted = new Map(entries.map((entry, at) => [entry.id, version + at]));
    for (const entry of this.of(item)) {
      if (!wanted.has(entry.id)) this.#forget(entry);
      else {
        entry.version = wanted.get(entry.id);
        this.storage.setItem(entry.key, JSON.stringify({ ...entry, key: undefined }));
      }
    }
    this.#held.delete(item);
    this.flush();
  }

  hold(item, why) {
    this.#held.set(item, why);
    this.#tell();
  }

  /** Send what waits. Resolves when there is nothing left that can be sent now. */
  async flush() {
    clearTimeout(this.#timer);
    if (this.#sending) return this.#sending;
    this.#sending = this.#send();
    try {
      await this.#sending;
    } finally {
      this.#sending = false;
    }
    return undefined;
  }

  #keep(entry) {
    // Two changes within one millisecond keep their order.
    this.#last = Math.max(Date.now(), this.#last + 1);
    entry.key = `${this.prefix}${String(this.#last).padStart(15, "0")}:${entry.id}`;
    try {
      this.storage.setItem(entry.key, JSON.stringify({ ...entry, key: undefined }));
    } catch {
      this.trouble = "storage";
    }
  }

  #forget(entry) {
    this.storage.removeItem(entry.key);
    this.#entries = this.#entries.filter((one) => one !== entry);
  }

  #waiting() {
    const batch = [];
    let bytes = 0;
    for (const entry of this.#entries) {
      if (this.#held.has(entry.item)) continue;
      bytes += 4 * JSON.stringify(entry).length;
      if (batch.length && (batch.length === MOST || bytes > LARGEST)) break;
      batch.push(entry);
    }
    return batch;
  }

  async #send() {
    for (let batch; (batch = this.#waiting()).length; ) {
      this.#tell("saving");
      try {
        // One alone is answered with its own status, which says why where it is refused; so after a refusal the first goes alone.
        if (batch.length > 1) batch = await this.#together(batch);
        if (batch.length) this.#answered(batch[0], await call("POST", "/api/changes", wire(batch[0])));
        this.trouble = null;
        this.#pause = 0.5;
      } catch (failure) {
        if (!(failure instanceof Failure)) throw failure;
        if (!(await this.#failed(failure, batch[0]))) return;
      }
    }
    this.#tell();
  }

  /** Send several; what is left is the first that was refused, alone. */
  async #together(batch) {
    const { results } = await call("POST", "/api/changes", { changes: batch.map(wire) });
    for (const [at, answer] of results.entries()) {
      if (answer.error !== undefined) return [batch[at]];
      this.#answered(batch[at], answer);
    }
    return [];
  }

  #answered(entry, answer) {
    this.#forget(entry);
    this.on.acknowledged(entry, answer);
  }

  /** What a failure means; true when sending goes on. */
  async #failed(failure, entry) {
    if (failure.status === 401) {
      this.trouble = "login";
      this.#tell();
      await this.on.login();
      this.trouble = null;
      return true;
    }
    if (failure.status === 409) {
      this.#held.set(entry.item, "clash");
      this.on.clash(entry.item);
      return true;
    }
    if (failure.status === 0 || failure.status === 429 || failure.status >= 500) {
      this.trouble = failure.status === 429 ? "busy" : "offline";
      const wait = failure.wait ?? this.#pause;
      this.#pause = Math.min(this.#pause * 2, 10);
      this.#timer = setTimeout(() => this.flush(), 1000 * wait);
      this.#tell();
      return false;
    }
    this.#held.set(entry.item, failure.message);
    this.on.refused(entry, failure);
    return true;
  }

  #tell(doing = null) {
    this.on.state({ trouble: this.trouble, unsent: this.#entries.length, held: this.#held.size, doing });
  }
}

function wire({ item, id, version, change, seconds }) {
  return { item, id, version, change, seconds };
}
