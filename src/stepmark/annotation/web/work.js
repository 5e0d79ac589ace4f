// One item under the annotator's hands: what is shown, the log as the server has it, and what is still on its way.

import { count, make, visible } from "./dom.js";
import { Folding, Refused } from "./fold.js";

const IDLE = 60; // seconds without a sign of life that still count as reading

/** Counts the time that somebody is at the page. */
export class Clock {
  #last = performance.now();
  #seconds = 0;

  constructor() {
    for (const event of ["keydown", "pointerdown", "pointermove", "wheel", "scroll", "visibilitychange"]) {
      document.addEventListener(event, () => this.#tick(), { passive: true, capture: true });
    }
  }

  #tick() {
    const now = performance.now();
    if (this.#last !== null) this.#seconds += Math.min((now - this.#last) / 1000, IDLE);
    this.#last = document.hidden ? null : now; // null while nobody sees the page
  }

  /** Seconds since the last time this was asked. */
  take() {
    this.#tick();
    const seconds = Math.round(100 * this.#seconds) / 100;
    this.#seconds = 0;
    return seconds;
  }
}

export class Work {
  isFinal = false;

  constructor(answer, project, outbox, clock) {
    this.view = answer.item;
    this.id = answer.item.id;
    this.suggestions = answer.suggestions ?? null;
    this.project = project;
    this.outbox = outbox;
    this.clock = clock;
    this.clashing = [];
    this.stored = answer.changes;
    this.#fold();
    this.#catchUp();
    clock?.take();
  }

  get helped() {
    return this.suggestions?.some(Boolean) ?? false;
  }

  /** Whether a judged step has a suggestion that nobody has looked at; of a step that nobody judges none needs a look. */
  toVerify(step) {
    return Boolean(this.suggestions?.[step]) && this.folding.rating(step) !== null && !this.folding.verified(step);
  }

  /** The steps whose suggestions are still to be looked at, where the project asks for it. */
  get unverified() {
    if (!this.project.help.require_verification || !this.helped) return [];
    return this.suggestions.flatMap((one, step) => (this.toVerify(step) ? [step] : []));
  }

  /** Make a change, or throw `Refused`. */
  do(change) {
    if (this.clashing.length) throw new Refused("First choose what to keep: this item was changed elsewhere.");
    if (this.helped && (change.kind === "rate" || change.kind === "first_error")) change = { ...change, on: true };
    const before = this.folding.version;
    this.folding.take(change);
    this.outbox.add(this.id, before, change, this.clock.take());
  }

  /** Take the server's state again after a clash; what of ours is not in it is kept aside until the annotator chooses. */
  refresh(answer) {
    this.stored = answer.changes;
    this.suggestions = answer.suggestions ?? null;
    this.#fold();
    this.clashing = [];
    this.#catchUp();
  }

  dropMine() {
    this.outbox.drop(this.id);
    this.clashing = [];
  }

  /** Put ours on top of theirs; returns how many fit. */
  keepMine() {
    const fit = this.clashing.filter(({ change }) => {
      try {
        this.folding.take(change);
        return true;
      } catch {
        return false;
      }
    });
    const all = this.clashing.length;
    this.clashing = [];
    this.outbox.rebase(this.id, fit, this.stored.length);
    return { fit: fit.length, all };
  }

  #fold() {
    const { mode, allow_neutral } = this.project;
    this.folding = new Folding(mode, this.view.steps.length, { allowNeutral: allow_neutral });
    for (const change of this.stored) this.folding.take(change);
  }

  /** Apply what this browser has not sent yet, or find that it clashes. */
  #catchUp() {
    if (!this.outbox) return;
    const known = new Set(this.stored.map(({ id }) => id));
    this.outbox.drop(this.id, known);
    const waiting = this.outbox.of(this.id);
    if (!waiting.length) return;
    if (waiting.every(({ version }, at) => version === this.stored.length + at)) {
      for (const { change } of waiting) this.folding.take(change);
      return;
    }
    this.clashing = waiting;
    this.outbox.hold(this.id, "clash");
  }
}

/** The counts and warnings of the item, as chips. */
export function countsOf(work) {
  const { folding, project, view } = work;
  const all = view.steps.length;
  const chip = (kind, words) => make("span", { class: `chip ${kind}` }, visible(words));
  const parts = [];
  if (folding.mode === "first_error") {
    const first = folding.firstError;
    const error = view.agent ? "decisive error" : "first error";
    if (first === null) parts.push(chip("none", `${error}: not marked yet`));
    else if (first < 0) parts.push(chip("good", `no error in ${count(all, "step")}`));
    else parts.push(chip("bad", `${error}: step ${first + 1} of ${all}`));
  } else {
    const seen = { "-1": 0, 0: 0, 1: 0, null: 0 };
    for (let step = 0; step < all; step++) seen[folding.rating(step)]++;
    const { correct, neutral, incorrect } = project.reward_labels;
    parts.push(chip("good", `${seen[1]} ${correct.toLowerCase()}`));
    if (folding.allowNeutral) parts.push(chip("warn", `${seen[0]} ${neutral.toLowerCase()}`));
    parts.push(chip("bad", `${seen[-1]} ${incorrect.toLowerCase()}`));
    if (seen[null]) parts.push(chip("none", `${seen[null]} not judged`));
  }
  if (folding.unsure(null)) parts.push(chip("odd", "unsure of the whole"));
  const left = work.unverified.length;
  if (left) parts.push(chip("odd", `${left} to verify`));
  return parts;
}

/** Where the annotator's work is now: saved, on its way, or waiting in this browser. */
export function saveWords({ trouble, unsent, held, doing }) {
  const waiting = `${unsent} not sent`;
  if (trouble === "storage") return ["bad", "The browser's storage is full: keep this tab open until all is saved"];
  if (held) return ["bad", `${waiting}: needs your decision`];
  if (trouble === "offline") return ["odd", `${waiting}: offline, kept in this browser`];
  if (trouble === "login") return ["odd", `${waiting}: log in again`];
  if (trouble === "busy") return ["odd", `${waiting}: the server asks to wait`];
  if (unsent || doing) return ["", "Saving …"];
  return ["good", "Saved"];
}
