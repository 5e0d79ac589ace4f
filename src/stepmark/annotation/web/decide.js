// One disagreement: what each annotator says beside every step, and the adjudicator's own marks, made with the same keys.

import { Failure, ask } from "./api.js";
import { Board } from "./board.js";
import { disputePath } from "./lists.js";
import { countsOf } from "./work.js";
import { button, duration, make, say, table, visible } from "./dom.js";
import { Folding } from "./fold.js";

const SIGNS = { "-1": "✗", 0: "○", 1: "✓", null: "–" };
const KINDS = { "-1": "bad", 0: "warn", 1: "good", null: "none" };
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/** The adjudicator's marks: like an annotator's item, but kept in this tab until the decision is recorded. */
class Draft {
  suggestions = null;
  helped = false;
  isFinal = true; // a decision is not unsure
  unverified = [];

  constructor(view, project, account) {
    this.view = view;
    this.id = view.id;
    // Deciding is about marks alone: no pre-labels here.
    this.project = { ...project, help: { show: "never", require_verification: false } };
    this.key = `stepmark:draft:${account}:${view.id}`;
    this.folding = new Folding(project.mode, view.steps.length, { allowNeutral: project.allow_neutral });
    this.log = [];
    try {
      for (const change of JSON.parse(sessionStorage.getItem(this.key) ?? "[]")) this.do(change);
    } catch {
      // A draft of another version of the page: the marks begin anew.
    }
  }

  toVerify() {
    return false;
  }

  do(change) {
    this.folding.take(change);
    this.log.push(change);
    sessionStorage.setItem(this.key, JSON.stringify(this.log));
  }

  forget() {
    sessionStorage.removeItem(this.key);
  }
}

export class DecidePage {
  item = null;

  constructor({ main, me }) {
    Object.assign(this, { main, me });
  }

  stop() {
    this.board?.stop();
  }

  async open(item) {
    this.stop();
    let found;
    try {
      found = await ask("GET", `/api/disputes/${encodeURIComponent(item)}`);
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      this.main.replaceChildren(make("section", { class: "nothing" }, make("h1", {}, "This disagreement cannot be opened"), make("p", {}, visible(failure.message))));
      return;
    }
    this.found = found;
    this.answers = found.answers.map((answer, at) => ({ ...answer, letter: LETTERS[at] ?? String(at + 1) }));
    this.draft = new Draft(found, this.me.project, this.me.name);
    this.taken = null;
    const actions = { submit: () => this.#record(), differ: () => this.#differ() };
    for (const letter of "ABC") actions[`take${letter}`] = () => this.#take(this.answers.find((one) => one.letter === letter));
    this.board = new Board(this.draft, { when: ["deciding"], actions, aside: (step) => this.#beside(step), painted: () => this.#paint() });
    this.counts = make("div", { class: "counts" });
    this.reason = make("input", { placeholder: "Why (recorded with the decision)", aria: { label: "Reason" }, maxLength: 4000, value: found.decision?.reason ?? "" });
    this.done = button(["Record ", make("kbd", { aria: { hidden: "true" } }, "s")], () => this.#record(), { class: "strong" });
    this.clean =
      this.me.project.mode === "first_error"
        ? button(["No error ", make("kbd", { aria: { hidden: "true" } }, "e")], () => this.board.press("clean"), { class: "clean", aria: { pressed: "false" } })
        : "";
    const foot = make("footer", { class: "foot deciding" }, this.counts, this.reason, make("div", { class: "do" }, this.clean, this.done));
    this.board.about.append(this.#answers());
    this.main.replaceChildren(this.board.element, foot);
    scrollTo({ top: 0, behavior: "instant" });
    this.board.start();
    if (!this.draft.log.length) this.#differ(0);
  }

  /** What each says of the whole, with the way to take it over. */
  #answers() {
    const rows = this.answers.map((answer) => {
      const { marks, letter } = answer;
      const notes = marks.notes.filter(([step]) => step === null).map(([, text]) => text);
      const said = [wordsOf(marks), marks.unsure.includes(null) && "unsure", ...notes].filter(Boolean).join(" · ");
      const name = answer.account === letter ? letter : `${letter} ${answer.account}`;
      return [make("b", {}, visible(name)), said, answer.seconds ? duration(answer.seconds) : "", button("Use", () => this.#take(answer), { class: "small", title: `Use the answer of ${letter} (Shift+${letter.toLowerCase()})` })];
    });
    const before = this.found.decision;
    const decided = before && make("p", { class: "note" }, `Decided before by ${visible(before.account)}: ${wordsOf(before.marks)}${before.reason ? `, “${visible(before.reason)}”` : ""}.`);
    return make("section", { class: "answers" }, make("h3", {}, "Answers"), table("Answers", ["Who", ["First error", "wide"], "Time", ""], rows), decided ?? "");
  }

  #beside(step) {
    const ratings = this.answers.map(({ marks }) => marks.ratings[step]);
    const differ = this.#differs(step);
    const chips = this.answers.map(({ letter, marks }, at) => {
      const type = marks.error_types.find(([place]) => place === step)?.[1];
      const note = marks.notes.find(([place]) => place === step)?.[1];
      const unsure = marks.unsure.includes(step);
      const words = [type, unsure && "unsure"].filter(Boolean).join(", ");
      return [
        make("span", { class: `says ${KINDS[ratings[at]]}` }, `${letter} `, make("b", {}, SIGNS[ratings[at]]), words ? ` ${visible(words)}` : ""),
        note ? make("span", { class: "noted" }, `${letter}: ${visible(note)}`) : null,
      ];
    });
    return make("div", { class: differ ? "beside differ" : "beside" }, chips.map(([chip]) => chip), chips.map(([, note]) => note));
  }

  #differs(step) {
    return this.found.differing.includes(step);
  }

  #differ(from = this.board.list.current + 1) {
    const { list } = this.board;
    for (let by = 0; by < list.count; by++) {
      const step = (from + by) % list.count;
      if (this.#differs(step)) return list.go(step);
    }
    return say("They differ on no single step.", { shown: true });
  }

  /** The draft becomes what an annotator says. */
  #take(answer) {
    if (!answer) return;
    const { marks, letter } = answer;
    const changes = [{ kind: "reset" }];
    if (this.me.project.mode === "first_error") changes.push({ kind: "first_error", step: marks.first_error ?? null });
    else for (const [step, rating] of marks.ratings.entries()) if (rating !== null) changes.push({ kind: "rate", step, rating });
    for (const [step, text] of marks.error_types) changes.push({ kind: "error_type", step, text });
    for (const change of changes) this.draft.do(change);
    this.taken = answer;
    this.board.paint();
    say(`Using the answer of ${letter}`, { shown: true });
  }

  /** Whose marks these still are. */
  #chosen() {
    if (!this.taken) return null;
    const same = this.taken.marks.ratings.every((rating, step) => rating === this.draft.folding.rating(step));
    return same ? this.taken.account : null;
  }

  #paint() {
    this.counts.replaceChildren(...countsOf(this.draft));
    this.done.classList.toggle("ready", !this.draft.folding.missing);
    if (this.clean) this.clean.setAttribute("aria-pressed", String(this.draft.folding.firstError === -1));
  }

  async #record() {
    const { folding } = this.draft;
    const gap = folding.missing;
    if (gap || folding.unsure(null)) {
      say(gap?.words ?? "A decision cannot be unsure.", { shown: true, bad: true });
      return;
    }
    const data = folding.data();
    const marks = { mode: data.mode, steps: data.steps, first_error: data.first_error, ratings: data.ratings, notes: data.notes, error_types: data.error_types };
    try {
      await ask("POST", "/api/decisions", { item: this.draft.id, marks, chosen: this.#chosen(), reason: this.reason.value.trim(), version: this.found.version });
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      say(visible(failure.message), { shown: true, bad: true });
      if (failure.status === 409) await this.open(this.draft.id);
      return;
    }
    this.draft.forget();
    say("Decision recorded", { shown: true });
    const { disputes } = await ask("GET", "/api/disputes");
    const next = disputes.find((one) => one.item !== this.draft.id && one.state !== "decided");
    location.hash = next ? disputePath(next.item) : "#/disputes";
  }
}

function wordsOf({ first_error: first, ratings, mode }) {
  if (mode === "first_error" || first !== null) return first === null ? "nothing said" : first < 0 ? "no error" : `step ${first + 1}`;
  const wrong = ratings.indexOf(-1);
  return wrong < 0 ? "no wrong step" : `step ${wrong + 1}`;
}
