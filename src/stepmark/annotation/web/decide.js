// One disagreement: what each annotator says beside every step, and the admin's decision, made with the same keys.

import { Board, KINDS, SIGNS, countsOf } from "./board.js";
import { button, key, make, nothing, say, table, visible } from "./dom.js";
import { Failure, ask, call } from "./server.js";

export class DecidePage {
  constructor(around) {
    Object.assign(this, around);
  }

  get item() {
    return this.board?.item.id ?? null;
  }

  stop() {
    this.board?.stop();
    this.board = null;
  }

  async open(id) {
    let found;
    try {
      found = await ask(`/api/dispute?id=${encodeURIComponent(id)}`, this.away);
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      return this.main.replaceChildren(nothing("This disagreement cannot be opened", failure.message));
    }
    this.stop();
    this.found = found;
    this.answers = found.answers.map((answer, at) => ({ ...answer, letter: String.fromCharCode(65 + at) }));
    this.counts = make("div", { class: "counts" });
    this.reason = make("input", { placeholder: "Why (recorded with the decision)", aria: { label: "Reason" }, maxLength: 4000, value: found.decision?.reason ?? "" });
    this.clean = button(["No error ", key("e")], () => this.board.press("clean", this.board.here), { class: "clean", hidden: this.me.project.mode !== "first_error" });
    this.done = button(["Record ", key("s")], () => this.#record(), { class: "strong" });
    const takes = this.answers.slice(0, 3).map((answer) => [`take${answer.letter}`, () => this.#take(answer)]);
    const board = new Board(found, this.me.project, {
      when: ["deciding"],
      send: (change) => this.outbox.add(id, change, 0, true),
      actions: { submit: () => this.#record(), differ: () => this.#differ(), ...Object.fromEntries(takes) },
      aside: (step) => this.#beside(step),
      painted: () => this.#paint(),
    });
    this.board = board;
    board.about.append(this.#said());
    this.main.replaceChildren(board.element, make("footer", { class: "foot deciding" }, this.counts, this.reason, make("div", { class: "do" }, this.clean, this.done)));
    scrollTo({ top: 0, behavior: "instant" });
    board.start();
    this.#differ(0);
    return undefined;
  }

  /** What each says of the whole, with the way to take it over. */
  #said() {
    const rows = this.answers.map((answer) => {
      const { account, marks, letter } = answer;
      const notes = marks.notes.filter(([step]) => step === null).map(([, text]) => text);
      const words = [wordsOf(marks), marks.unsure.includes(null) && "unsure", ...notes].filter(Boolean).join(" · ");
      return [make("b", {}, visible(`${letter} ${account}`)), words, button("Use", () => this.#take(answer), { class: "small", title: `Use the answer of ${account} (Shift+${letter.toLowerCase()})` })];
    });
    const { decision } = this.found;
    const before = decision && make("p", { class: "note" }, visible(`Decided before: ${wordsOf(decision.marks)}${decision.reason ? `, “${decision.reason}”` : ""}.`));
    return make("section", { class: "answers" }, make("h3", {}, "Answers"), table("Answers", ["Who", ["First error", "wide"], ""], rows), before ?? "");
  }

  #beside(step) {
    const parts = this.answers.flatMap(({ letter, marks }) => {
      const type = marks.error_types.find(([place]) => place === step)?.[1];
      const note = marks.notes.find(([place]) => place === step)?.[1];
      const words = [type, marks.unsure.includes(step) && "unsure"].filter(Boolean).join(", ");
      const rating = marks.ratings[step];
      return [
        make("span", { class: `chip ${KINDS[rating]}` }, `${letter} `, make("b", {}, SIGNS[rating]), words ? ` ${visible(words)}` : ""),
        note ? make("p", { class: "noted" }, visible(`${letter}: ${note}`)) : null,
      ];
    });
    return make("div", { class: this.found.differing.includes(step) ? "beside differ" : "beside" }, parts);
  }

  #differ(from) {
    if (this.board.seek((step) => this.found.differing.includes(step), from) === null) say("They differ on no single step.", { shown: true });
  }

  async #tried(path, body) {
    try {
      return await call("POST", path, body);
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      say(visible(failure.message), { shown: true, bad: true });
      if (failure.status === 409) await this.open(this.item);
      return null;
    }
  }

  async #take({ account }) {
    const state = await this.#tried("/api/take-over", { item: this.item, account });
    if (!state) return;
    this.board.update(state);
    say(`Using the answer of ${account}`, { shown: true });
  }

  #paint() {
    if (!this.board) return;
    const { marks, complete } = this.board.state;
    this.counts.replaceChildren(...countsOf(this.board));
    this.done.classList.toggle("ready", complete);
    this.clean.setAttribute("aria-pressed", String(marks.first_error === -1));
  }

  state() {
    this.board?.waiting(this.outbox.of(this.item));
  }

  answered(_entry, state) {
    this.board.update(state);
  }

  refused(failure) {
    say(failure.message, { shown: true, bad: true });
  }

  async #record() {
    await this.outbox.flush();
    const { item } = this;
    const body = { item, reason: this.reason.value.trim(), version: this.found.answers_version };
    if (!(await this.#tried("/api/decisions", body))) return;
    say("Decision recorded", { shown: true });
    const next = (await ask("/api/disputes", this.away)).find((one) => one.item !== item && one.state !== "decided");
    location.hash = next ? `#/dispute/${encodeURIComponent(next.item)}` : "#/disputes";
  }
}

function wordsOf({ first_error: first, ratings, mode }) {
  if (mode === "first_error") return first === null ? "nothing said" : first < 0 ? "no error" : `step ${first + 1}`;
  const wrong = ratings.indexOf(-1);
  return wrong < 0 ? "no wrong step" : `step ${wrong + 1}`;
}
