// Folds a log of changes into marks, by the rules in the docstring of `marks.py`; a test plays random logs through both.

const USES = {
  first_error: ["step", "on"],
  rate: ["step", "rating", "on"],
  unsure: ["step", "on"],
  note: ["step", "text"],
  error_type: ["step", "text"],
  verify: ["step", "on"],
  reset: [],
  submit: [],
  reopen: [],
  undo: [],
  redo: [],
};
const PARTS = ["first_error", "rating", "unsure", "note", "error_type", "verified"];

/** A change that cannot be; its message is for the annotator, so steps count from 1 in it. */
export class Refused extends Error {}

function refuse(words) {
  throw new Refused(words);
}

/** A log that is being folded. A refused change alters nothing. */
export class Folding {
  #maps = Object.fromEntries(PARTS.map((part) => [part, new Map()]));
  #done = [];
  #undone = [];

  constructor(mode, steps, { allowNeutral = false } = {}) {
    this.mode = mode;
    this.steps = steps;
    this.allowNeutral = allowNeutral;
    this.version = 0;
    this.submitted = false;
  }

  get canUndo() {
    return this.#done.length > 0;
  }

  get canRedo() {
    return this.#undone.length > 0;
  }

  get firstError() {
    return this.#value("first_error", null);
  }

  /** +1, 0, -1, or null for a step that is not judged. */
  rating(step) {
    if (this.mode === "per_step") return this.#value("rating", step);
    const first = this.firstError;
    if (first === null || (first >= 0 && step > first)) return null;
    return step === first ? -1 : 1;
  }

  unsure(step) {
    return this.#maps.unsure.has(step);
  }

  note(step) {
    return this.#maps.note.get(step) ?? "";
  }

  errorType(step) {
    return this.#value("error_type", step);
  }

  verified(step) {
    return this.#maps.verified.has(step);
  }

  /** Why the item cannot be submitted yet, as { step, words }; null when it can. */
  get missing() {
    if (this.unsure(null)) return null;
    if (this.mode === "first_error") {
      const words = "Mark the first wrong step, or that there is none, or that you are unsure of the whole item.";
      return this.firstError === null ? { step: null, words } : null;
    }
    for (let step = 0; step < this.steps; step++) {
      const rating = this.rating(step);
      if (rating === -1) return null;
      if (rating === null && !this.unsure(step)) {
        return { step, words: `Step ${step + 1} is neither rated nor marked as unsure.` };
      }
    }
    return null;
  }

  /** Play one change. Throws `Refused`. */
  take(change) {
    const uses = USES[change.kind] ?? refuse(`There is no change of the kind ${change.kind}.`);
    for (const name of ["step", "rating", "text", "on"]) {
      if (!uses.includes(name) && (change[name] ?? null) !== null) refuse(`A change of the kind ${change.kind} has no ${name}.`);
    }
    if (this.submitted && change.kind !== "reopen") refuse("This item is submitted. Reopen it to change it.");
    switch (change.kind) {
      case "submit":
        if (this.missing) refuse(this.missing.words);
        this.submitted = true;
        break;
      case "reopen":
        if (!this.submitted) refuse("The item is not submitted, so there is nothing to reopen.");
        this.submitted = false;
        break;
      case "undo":
        if (!this.canUndo) refuse("There is nothing to undo.");
        this.#move(this.#done, this.#undone, "before");
        break;
      case "redo":
        if (!this.canRedo) refuse("There is nothing to redo.");
        this.#move(this.#undone, this.#done, "after");
        break;
      default:
        this.#alter(this.#wanted(change));
    }
    this.version += 1;
  }

  /** The same as `marks_data` in Python. */
  data() {
    const sorted = (part) => [...this.#maps[part]].sort(([one], [other]) => (one ?? -1) - (other ?? -1));
    return {
      mode: this.mode,
      steps: this.steps,
      first_error: this.firstError,
      ratings: Array.from({ length: this.steps }, (_, step) => this.rating(step)),
      unsure: sorted("unsure").map(([step]) => step),
      notes: sorted("note"),
      error_types: sorted("error_type"),
      verified: sorted("verified").map(([step]) => step),
      submitted: this.submitted,
    };
  }

  #value(part, key) {
    return this.#maps[part].get(key) ?? null;
  }

  #put(part, key, value) {
    if (value === null) this.#maps[part].delete(key);
    else this.#maps[part].set(key, value);
  }

  #move(from, to, side) {
    const patch = from.pop();
    to.push(patch);
    for (const entry of patch) this.#put(entry.part, entry.key, entry[side]);
  }

  #alter(wanted) {
    const patch = wanted
      .map(([part, key, after]) => ({ part, key, before: this.#value(part, key), after }))
      .filter(({ before, after }) => before !== after);
    if (!patch.length) return;
    for (const { part, key, after } of patch) this.#put(part, key, after);
    this.#done.push(patch);
    this.#undone = [];
  }

  /** What a change wants to be so: [map, key, value], null for absence. */
  #wanted({ kind, step: place, rating: given, text, on: flag }) {
    const [step, rating, on] = [place ?? null, given ?? null, flag ?? null];
    switch (kind) {
      case "first_error": {
        this.#modeIs("first_error");
        if (step !== null && step !== -1) this.#step(step);
        const wanted = [["first_error", null, step]];
        for (const key of this.#maps.error_type.keys()) if (key !== step) wanted.push(["error_type", key, null]);
        if (on && step !== null) {
          const judged = step === -1 ? this.steps : step + 1;
          for (let key = 0; key < judged; key++) wanted.push(["verified", key, true]);
        }
        return wanted;
      }
      case "rate": {
        this.#modeIs("per_step");
        this.#step(step);
        if (![null, -1, 0, 1].includes(rating)) refuse("A rating is right, neutral, wrong or none.");
        if (rating === 0 && !this.allowNeutral) refuse("This project has no neutral ratings.");
        const wanted = [["rating", step, rating]];
        if (rating !== -1) wanted.push(["error_type", step, null]);
        if (on && rating !== null) wanted.push(["verified", step, true]);
        return wanted;
      }
      case "unsure":
        if (step !== null) this.#step(step);
        return [["unsure", step, this.#flag(on)]];
      case "note":
        if (step !== null) this.#step(step);
        return [["note", step, text || null]];
      case "error_type": {
        this.#step(step);
        const wrong = this.firstError === step || this.#value("rating", step) === -1;
        if (text && !wrong) refuse(`Step ${step + 1} is not marked as wrong, so its error has no type.`);
        return [["error_type", step, text || null]];
      }
      case "verify":
        return [["verified", this.#step(step), this.#flag(on)]];
      default:
        return PARTS.flatMap((part) => [...this.#maps[part].keys()].map((key) => [part, key, null]));
    }
  }

  #modeIs(mode) {
    if (this.mode !== mode) refuse(`This project's mode is ${this.mode}.`);
  }

  #step(step) {
    if (!Number.isInteger(step) || step < 0 || step >= this.steps) refuse(`There is no such step: choose one from 1 to ${this.steps}.`);
    return step;
  }

  #flag(on) {
    if (typeof on !== "boolean") refuse("Say whether it is on or off.");
    return on || null;
  }
}

/** Play a log from the start. */
export function fold(mode, steps, changes, settings) {
  const folding = new Folding(mode, steps, settings);
  for (const change of changes) folding.take(change);
  return folding;
}
