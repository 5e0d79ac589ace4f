// The annotator's page: one item, its steps, and the way to the next one.

import { Board, countsOf } from "./board.js";
import { button, count, key, make, nothing, say, visible } from "./dom.js";
import { Failure, ask } from "./server.js";

const IDLE = 60; // seconds without a sign of life that still count as reading

/** Counts the seconds in which the page is used. */
class Clock {
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

const clock = new Clock();

export class LabelPage {
  #seen = []; // items of this visit, for the way back

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

  /** Open an item, or the next one when `id` is null. */
  async open(id, after = null) {
    let answer;
    try {
      const query = after === null ? "" : `?after=${encodeURIComponent(after)}`;
      answer = await ask(id === null ? `/api/next${query}` : `/api/item?id=${encodeURIComponent(id)}`, this.away);
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      return this.#nothing("This item cannot be opened", failure.message, button("Next item", () => this.open(null), { class: "strong" }));
    }
    if (answer.progress) this.shell.progress(answer.progress);
    return answer.item ? this.#show(answer) : this.#end(answer.reason);
  }

  #show(answer) {
    this.stop();
    clock.take();
    const { id } = answer.item;
    if (this.#seen.at(-1) !== id) this.#seen.push(id);
    history.replaceState(null, "", `#/item/${encodeURIComponent(id)}`);
    this.#foot();
    this.notice = make("section", { class: "notice", hidden: true, aria: { live: "polite" } });
    this.board = new Board(answer, this.me.project, {
      when: ["labelling"],
      send: (change) => {
        if (this.outbox.of(id).some(({ change: { kind } }) => kind === "submit")) say("This one is being submitted.", { shown: true });
        else this.outbox.add(id, change, clock.take(), false);
      },
      actions: {
        submit: () => (this.board.isSubmitted ? this.open(null, id) : this.board.change({ kind: "submit" })),
        reopen: () => this.board.change({ kind: "reopen" }, "Reopened"),
        skip: () => this.open(null, id),
        back: () => this.#back(),
        mine: () => (location.hash = "#/mine"),
      },
      painted: () => this.#paint(),
    });
    this.main.replaceChildren(this.notice, this.board.element, this.foot);
    scrollTo({ top: 0, behavior: "instant" });
    this.board.start();
    this.state();
    if (answer.marks.submitted) this.#tell("You have submitted this one. Reopen it (r) to change it.");
    say(`${count(this.board.count, "step")}. ${answer.marks.submitted ? "Submitted." : ""}`);
  }

  #foot() {
    const press = (action) => () => this.board.press(action, this.board.here);
    this.counts = make("div", { class: "counts" });
    this.saved = make("span", { class: "saved", attr: { role: "status" } });
    this.undo = button(["Undo ", key("z")], press("undo"), { class: "quiet" });
    this.redo = button(["Redo ", key("y")], press("redo"), { class: "quiet" });
    this.again = button(["Reopen ", key("r")], press("reopen"), { class: "quiet" });
    this.clean = button(["No error ", key("e")], press("clean"), { class: "clean", hidden: true });
    this.done = button("", press("submit"), { class: "strong" });
    this.foot = make("footer", { class: "foot" }, this.counts, this.saved, make("div", { class: "do" }, this.undo, this.redo, this.again, this.clean, this.done));
  }

  #paint() {
    if (!this.board) return; // it is being made
    const { marks, can_undo: canUndo, can_redo: canRedo, complete } = this.board.state;
    this.counts.replaceChildren(...countsOf(this.board));
    this.undo.disabled = !canUndo;
    this.redo.disabled = !canRedo;
    this.undo.hidden = this.redo.hidden = marks.submitted;
    this.again.hidden = !marks.submitted;
    this.clean.hidden = marks.submitted || marks.mode !== "first_error";
    this.clean.setAttribute("aria-pressed", String(marks.first_error === -1));
    this.done.replaceChildren(marks.submitted ? "Next " : "Submit ", key("s"));
    this.done.classList.toggle("ready", marks.submitted || complete);
  }

  /** The outbox has other clicks than before, or other trouble. */
  state() {
    if (!this.board) return;
    const { trouble, unsent } = this.outbox;
    this.board.waiting(this.outbox.of(this.item));
    const [kind, words] = trouble ? ["odd", `${unsent} not sent (${trouble}), kept in this browser`] : unsent ? ["", "Saving …"] : ["good", "Saved"];
    if (this.saved.textContent !== words) this.saved.textContent = words;
    this.saved.className = `saved ${kind}`;
  }

  /** The server has a click of this item. */
  answered({ change }, state) {
    const isFirstPass = change.kind === "submit" && this.board.state.suggestions === null && state.suggestions !== null;
    const changed = this.board.update(state);
    if (change.kind === "reopen") this.notice.hidden = true;
    if (["undo", "redo"].includes(change.kind) && changed.length) this.board.go(state.marks.first_error >= 0 ? (state.marks.first_error ?? changed[0]) : changed[0]);
    if (change.kind !== "submit") return;
    if (!isFirstPass) return void this.open(null, this.item);
    this.board.seek((step) => state.suggestions[step], 0);
    this.#tell(`Your first pass is saved. Below each step is now what the model says of it.`, [
      button("Reopen (r)", () => this.board.actions.reopen(), { class: "strong" }),
      button("Next (s)", () => this.open(null, this.item)),
    ]);
  }

  /** The server refused a click of this item. */
  async refused(failure) {
    say(visible(failure.message), { shown: true, bad: true });
    if (Number.isInteger(failure.data?.step)) this.board.go(failure.data.step);
    const { board } = this;
    // Perhaps it was changed in another tab.
    const answer = await ask(`/api/item?id=${encodeURIComponent(this.item)}`, this.away).catch(() => null);
    if (answer) board.update(answer);
  }

  #back() {
    const at = this.#seen.lastIndexOf(this.item);
    if (at < 1) return void say("There is no solution before this one on this visit: see the list (l).", { shown: true });
    const id = this.#seen[at - 1];
    this.#seen.length = at;
    return this.open(id);
  }

  #tell(words, buttons = []) {
    this.notice.replaceChildren(make("p", {}, words), make("div", { class: "row" }, buttons));
    this.notice.hidden = false;
  }

  #end(reason) {
    const words = {
      done: ["All done", "There is nothing left for you to label. Thank you."],
      waiting: ["Nothing at the moment", "Other annotators have what is left open. This page checks again every half minute."],
    };
    this.#nothing(...words[reason]);
    if (reason !== "waiting") return;
    const before = this.main.firstChild;
    setTimeout(() => this.main.firstChild === before && this.open(null), 30_000);
  }

  #nothing(title, words, next = null) {
    this.stop();
    history.replaceState(null, "", "#/label");
    this.main.replaceChildren(nothing(title, words, make("p", {}, next, " ", make("a", { href: "#/mine" }, "My solutions"))));
  }
}
