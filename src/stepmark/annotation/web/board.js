// What an annotator and an adjudicator do alike: move among the steps and mark them, by key, mouse and touch.

import { button, count, dialog, make, say, visible } from "./dom.js";
import { Refused } from "./fold.js";
import { showHelp } from "./help.js";
import { isTyped, keysOf, pressed, setting } from "./keys.js";
import { foldIn, longText } from "./parts.js";
import { StepList } from "./steps.js";
import { prose } from "./text.js";

export class Board {
  #keys = new Map();
  #hear = (event) => this.#key(event);
  #leave = () => this.#commit?.();
  #commit = null; // what writes the note that is being written

  /** `when`: the names that `keys.js` knows; `actions`: what the page adds to the board's own. */
  constructor(work, { when = [], actions = {}, aside = null, painted = () => {} } = {}) {
    this.work = work;
    this.painted = painted;
    const { project } = work;
    this.when = new Set([...when, project.mode]);
    if (project.mode === "per_step" && project.allow_neutral) this.when.add("neutral");
    if (project.error_types.length) this.when.add("types");
    if (work.helped || project.help.show !== "never") this.when.add("help");
    this.actions = { ...this.#own(), ...actions };
    for (const { action, keys } of keysOf(this.when)) for (const key of keys) this.#keys.set(key, action);
    this.list = new StepList(work, (action, step) => this.press(action, step), aside);
    this.about = this.#about();
    this.whole = make("section", { class: "whole", aria: { label: "The whole solution" } });
    this.element = make("div", { class: "board" }, this.about, this.list.rail.element, make("div", { class: "column" }, this.list.element, this.whole));
    document.addEventListener("keydown", this.#hear);
    addEventListener("pagehide", this.#leave);
  }

  /** To be called once the element is in the page. */
  start() {
    this.paint();
    const { folding } = this.work;
    const open = Array.from({ length: this.list.count }, (_, step) => step).find((step) => this.list.state(step) === "none" && !folding.unsure(step));
    const at = folding.mode === "first_error" ? Math.max(0, folding.firstError ?? 0) : (open ?? 0);
    this.list.go(at, { scroll: at > 0 });
  }

  stop() {
    this.#commit?.();
    document.removeEventListener("keydown", this.#hear);
    removeEventListener("pagehide", this.#leave);
  }

  /** A control was used: the step becomes the current one first. */
  press(action, step) {
    if (step !== undefined && step !== this.list.current) this.list.go(step, { scroll: false, focus: action !== "note" });
    this.actions[action]?.({ byKey: false });
    // The focus goes back to the step, so that the next key is heard there and not by the button.
    if (step !== undefined && !["note", "type"].includes(action)) this.list.card(this.list.current).focus({ preventScroll: true });
  }

  paint() {
    const changed = this.list.paint();
    this.#paintWhole();
    this.painted();
    return changed;
  }

  /** Make a change; false when it was refused, which is said. */
  change(change, words) {
    try {
      this.work.do(change);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      say(error.message, { shown: true, bad: true });
      return false;
    }
    if (words) say(words);
    this.lastChanged = this.paint();
    return true;
  }

  #key(event) {
    if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
    const key = pressed(event);
    // "Ctrl+Enter" is heard while a note is written, too: it ends the note.
    if (key === null || isTyped(event)) return;
    const action = this.#keys.get(key);
    if (!action || (setting("keys") === "off" && !key.startsWith("Ctrl+") && key.length === 1 && action !== "help")) return;
    event.preventDefault();
    this.actions[action]?.({ byKey: true });
  }

  #own() {
    const list = () => this.list;
    const here = () => this.list.current;
    const rate = (rating, word) => ({ byKey }) => {
      const step = here();
      const isSame = !byKey && this.work.folding.rating(step) === rating;
      const wanted = isSame ? null : rating; // a click on the pressed button takes it away
      if (!this.change({ kind: "rate", step, rating: wanted }, `Step ${step + 1}: ${wanted === null ? "not judged" : word()}`)) return;
      if (byKey && setting("advance") !== "off" && step + 1 < list().count) list().go(step + 1);
    };
    const words = () => this.list.words;
    const inFirstError = this.work.project.mode === "first_error";
    return {
      next: () => list().go(here() + 1),
      previous: () => list().go(here() - 1),
      first: () => list().go(0),
      last: () => list().go(list().count - 1),
      gap: () => this.#gap(),
      jump: () => this.#jump(),
      wrong: inFirstError ? ({ byKey }) => this.#firstError(byKey) : rate(-1, () => words()[-1]),
      neutral: rate(0, () => words()[0]),
      right: rate(1, () => words()[1]),
      clean: () => this.change({ kind: "first_error", step: -1 }, "No step is wrong"),
      clear: () =>
        inFirstError
          ? this.change({ kind: "first_error", step: null }, "Mark removed")
          : this.change({ kind: "rate", step: here(), rating: null }, `Step ${here() + 1}: not judged`),
      unsure: () => this.#unsure(here()),
      unsureAll: () => this.#unsure(null),
      note: () => this.#note(here()),
      noteAll: () => this.#note(null),
      type: () => this.#type(here()),
      accept: () => this.#accept(here()),
      undo: () => this.#back({ kind: "undo" }, "Undone"),
      redo: () => this.#back({ kind: "redo" }, "Redone"),
      fold: () => foldIn(list().card(here())) || say("Nothing here is folded.", { shown: true }),
      foldAll: () => {
        const open = this.element.querySelector(".column .folding:not([data-open])") !== null;
        foldIn(this.element.querySelector(".column"), open);
      },
      problem: () => {
        const more = this.about.querySelector("details");
        more.open = !more.open;
      },
      help: () => showHelp(this.work.project, this.when),
    };
  }

  #firstError(byKey) {
    const step = this.list.current;
    const isSame = !byKey && this.work.folding.firstError === step;
    this.change({ kind: "first_error", step: isSame ? null : step }, isSame ? "Mark removed" : `First wrong step: ${step + 1}`);
  }

  #gap() {
    const { count: all, current } = this.list;
    for (let by = 1; by <= all; by++) {
      const step = (current + by) % all;
      const isOpen = this.list.state(step) === "none" && !this.work.folding.unsure(step);
      if (isOpen || (!this.work.folding.submitted && this.work.unverified.length && this.work.toVerify(step))) {
        this.list.go(step);
        return;
      }
    }
    say("Every step is judged.", { shown: true });
  }

  #jump() {
    const field = make("input", { type: "number", min: "1", max: String(this.list.count), inputMode: "numeric", required: true, aria: { label: "Step" } });
    const form = make("form", { method: "dialog", class: "row" }, field, make("button", { class: "strong" }, "Go"));
    const box = dialog(`Jump to step (1 to ${this.list.count})`, form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      // At once, and not when the dialog tells that it is closed: the next key may come before that.
      box.close();
      this.list.go(Number(field.value) - 1);
    });
    field.focus();
  }

  #unsure(step) {
    const on = !this.work.folding.unsure(step);
    this.change({ kind: "unsure", step, on }, `${step === null ? "The whole solution" : `Step ${step + 1}`}: ${on ? "unsure" : "no longer unsure"}`);
  }

  #back(change, words) {
    if (!this.change(change, words)) return;
    const { folding } = this.work;
    const at = folding.mode === "first_error" && folding.firstError >= 0 ? folding.firstError : this.lastChanged[0];
    if (at !== undefined && at !== null) this.list.go(at);
  }

  #accept(step) {
    const suggestion = this.work.suggestions?.[step];
    const { folding } = this.work;
    if (!suggestion) return void say("Nothing is suggested for this step.", { shown: true });
    const { rating } = suggestion;
    let change = { kind: "verify", step, on: true };
    if (folding.mode === "per_step" && rating !== null && folding.rating(step) !== rating) change = { kind: "rate", step, rating };
    if (folding.mode === "first_error" && rating === -1 && folding.firstError !== step) change = { kind: "first_error", step };
    if (this.change(change, `Step ${step + 1}: suggestion accepted`) && setting("advance") !== "off" && step + 1 < this.list.count) this.list.go(step + 1);
  }

  #type(step) {
    const { folding, project } = this.work;
    if (folding.rating(step) !== -1) return void say("Only a wrong step has an error type.", { shown: true, bad: true });
    const set = (text) => {
      box.close();
      this.change({ kind: "error_type", step, text }, text ? `Step ${step + 1}: ${text}` : "Error type removed");
      this.list.card(step).focus({ preventScroll: true });
    };
    const own = folding.errorType(step);
    const kinds = project.error_types.map((name, at) =>
      button([at < 9 ? make("kbd", {}, String(at + 1)) : null, " ", visible(name)], () => set(name), { class: "choice", aria: { pressed: String(name === own) } }),
    );
    const none = button([make("kbd", {}, "0"), " none"], () => set(null), { class: "choice" });
    const box = dialog(`Type of the error in step ${step + 1}`, make("div", { class: "choices" }, kinds, none));
    box.addEventListener("keydown", ({ key }) => {
      if (key === "0") set(null);
      else if (/^[1-9]$/.test(key) && project.error_types[key - 1] !== undefined) set(project.error_types[key - 1]);
    });
    (kinds[project.error_types.indexOf(own)] ?? kinds[0]).focus();
  }

  #note(step) {
    this.#commit?.();
    const { folding } = this.work;
    if (folding.submitted) return void say("This item is submitted. Reopen it to change it.", { shown: true, bad: true });
    const place = step === null ? this.whole : this.list.place(step);
    const label = step === null ? "Note on the whole solution" : `Note on step ${step + 1}`;
    const before = folding.note(step);
    const area = make("textarea", { rows: 3, value: before, maxLength: 4000, placeholder: `${label}. Enter saves, Shift+Enter starts a line, Esc leaves it as it was.`, aria: { label } });
    const end = (save) => {
      if (this.#commit === null) return;
      this.#commit = null;
      const text = area.value.trim();
      area.remove();
      if (!save || text === before || !this.change({ kind: "note", step, text: text || null }, "Note saved")) {
        if (step !== null) this.list.repaint(step);
        this.paint();
      }
    };
    this.#commit = () => end(true);
    area.addEventListener("blur", () => end(true));
    area.addEventListener("keydown", (event) => {
      if ((event.key !== "Enter" || event.shiftKey || event.isComposing) && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      end(event.key === "Enter");
      (this.list.card(step ?? this.list.current)).focus({ preventScroll: true });
    });
    place.prepend(area);
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }

  #paintWhole() {
    if (this.whole.querySelector("textarea")) return;
    const { folding } = this.work;
    const small = (words, action, isOn, title) =>
      button(words, () => this.actions[action]({ byKey: false }), { class: "small", title, disabled: folding.submitted, aria: { pressed: String(isOn) } });
    const note = folding.note(null);
    this.whole.replaceChildren(
      make("span", { class: "label" }, "The whole solution"),
      ...(this.work.isFinal ? [] : [small("Unsure", "unsureAll", folding.unsure(null), "Unsure of the whole solution (Shift+u)")]),
      small("Note", "noteAll", false, "Note on the whole solution (Shift+m)"),
      ...(note ? [button(visible(note), () => this.actions.noteAll({}), { class: "written", disabled: folding.submitted })] : []),
    );
  }

  /** Problem, answer, and what the project asks. */
  #about() {
    const { view, project } = this.work;
    const facts = [];
    if (view.answer !== null && view.answer !== undefined) facts.push(make("div", { class: "answer" }, make("span", { class: "label" }, "Reference answer"), prose(view.answer)));
    if (view.source) facts.push(make("p", { class: "note" }, visible(view.source)));
    return make(
      "aside",
      { class: "about", aria: { label: "Problem" } },
      make("details", { open: true }, make("summary", {}, "Problem ", make("span", { class: "note" }, count(view.steps.length, "step"))), longText(view.problem), ...facts),
      project.description ? make("p", { class: "task note" }, visible(project.description)) : null,
    );
  }
}
