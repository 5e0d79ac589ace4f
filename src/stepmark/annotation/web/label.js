// The annotator's page: one item, its steps, the keys, and the way to the next one.

import { Failure, ask } from "./api.js";
import { Board } from "./board.js";
import { button, count, duration, make, say, visible } from "./dom.js";
import { Work, countsOf, saveWords } from "./work.js";

const itemPath = (id) => `/api/items/${encodeURIComponent(id)}`;

export class LabelPage {
  #board = null;
  #work = null;
  #seen = []; // items of this visit, for the way back

  constructor({ main, me, outbox, clock, shell }) {
    Object.assign(this, { main, me, outbox, clock, shell });
  }

  get item() {
    return this.#work?.id ?? null;
  }

  stop() {
    this.#board?.stop();
    this.#board = null;
    this.#work = null;
  }

  /** Open an item, or the next one when `id` is null. */
  async open(id, after = null) {
    this.stop();
    const query = after === null ? "" : `?after=${encodeURIComponent(after)}`;
    let answer;
    try {
      answer = await ask("GET", id === null ? `/api/next${query}` : itemPath(id));
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      this.#nothing("This item cannot be opened", failure.message, button("Next item", () => this.open(null), { class: "strong" }));
      return;
    }
    if (!answer.item) this.#end(answer);
    else this.#show(answer);
  }

  #show(answer) {
    this.stop();
    this.#work = new Work(answer, this.me.project, this.outbox, this.clock);
    const id = this.#work.id;
    if (this.#seen.at(-1) !== id) this.#seen.push(id);
    history.replaceState(null, "", `#/item/${encodeURIComponent(id)}`);
    this.#board = new Board(this.#work, {
      when: ["labelling"],
      actions: {
        submit: () => this.#submit(),
        reopen: () => this.#reopen(),
        skip: () => this.open(null, id),
        back: () => this.#back(),
        mine: () => (location.hash = "#/mine"),
      },
      painted: () => this.#paint(),
    });
    this.#foot();
    this.notice = make("section", { class: "notice", hidden: true, aria: { live: "polite" } });
    this.main.replaceChildren(this.notice, this.#board.element, this.foot);
    this.#board.start();
    this.#notices();
    this.shell.paint(this.outbox);
    scrollTo({ top: 0, behavior: "instant" });
    if (this.#board.list.current > 0) this.#board.list.go(this.#board.list.current);
    say(`${count(this.#work.view.steps.length, "step")}. ${this.#work.folding.submitted ? "Submitted." : ""}`);
  }

  #foot() {
    const { actions } = this.#board;
    const press = (action) => () => {
      actions[action]({ byKey: false });
      this.#board?.list.card(this.#board.list.current)?.focus({ preventScroll: true });
    };
    this.counts = make("div", { class: "counts" });
    this.saved = make("span", { class: "saved", attr: { role: "status" } });
    const key = (name) => make("kbd", { aria: { hidden: "true" } }, name);
    this.undo = button(["Undo ", key("z")], press("undo"), { class: "quiet" });
    this.redo = button(["Redo ", key("y")], press("redo"), { class: "quiet" });
    this.clean = this.me.project.mode === "first_error" ? button(["No error ", key("e")], press("clean"), { class: "clean", aria: { pressed: "false" } }) : null;
    this.done = button("", () => (this.#work.folding.submitted ? this.#goOn() : this.#submit()), { class: "strong" });
    this.again = button(["Reopen ", key("r")], press("reopen"), { class: "quiet" });
    this.foot = make(
      "footer",
      { class: "foot" },
      this.counts,
      this.saved,
      make("div", { class: "do" }, this.undo, this.redo, this.again, this.clean, this.done),
    );
  }

  #paint() {
    const { folding } = this.#work;
    this.counts.replaceChildren(...countsOf(this.#work));
    this.undo.disabled = folding.submitted || !folding.canUndo;
    this.redo.disabled = folding.submitted || !folding.canRedo;
    this.undo.hidden = this.redo.hidden = folding.submitted;
    this.again.hidden = !folding.submitted;
    if (this.clean) {
      this.clean.hidden = folding.submitted;
      this.clean.setAttribute("aria-pressed", String(folding.firstError === -1));
    }
    const key = make("kbd", { aria: { hidden: "true" } }, "s");
    this.done.replaceChildren(folding.submitted ? "Next " : "Submit ", key);
    this.done.classList.toggle("ready", !folding.submitted && !folding.missing && !this.#work.unverified.length);
    this.main.classList.toggle("submitted", folding.submitted);
  }

  /** What the outbox says. */
  state(told) {
    if (!this.saved) return;
    const [kind, words] = saveWords(told);
    if (this.saved.textContent !== words) this.saved.textContent = words;
    this.saved.className = `saved ${kind}`;
  }

  #submit() {
    const work = this.#work;
    if (work.folding.submitted) return void this.#goOn();
    const gap = work.folding.missing;
    if (gap) {
      say(gap.words, { shown: true, bad: true });
      if (gap.step !== null) this.#board.list.go(gap.step);
      return;
    }
    const left = work.unverified;
    if (left.length) {
      const shown = left.slice(0, 8).map((step) => step + 1).join(", ");
      say(`Still to be accepted or overridden: step ${shown}${left.length > 8 ? " …" : ""} (${count(left.length, "suggestion")}).`, { shown: true, bad: true });
      this.#board.list.go(left[0]);
      return;
    }
    if (!this.#board.change({ kind: "submit" }, "Submitted")) return;
    this.#goOn(true);
  }

  /** To the next item once the server has this one; to this one's suggestions where they come after the first pass. */
  async #goOn(isFresh = false) {
    const work = this.#work;
    const { id } = work;
    if (isFresh) await this.#sent(id);
    // While the server was away the annotator may have opened it again.
    if (this.#work !== work || !work.folding.submitted || work.clashing.length || this.outbox.held(id)) return;
    if (isFresh && this.me.project.help.show === "after" && !work.helped) {
      const answer = await ask("GET", itemPath(id));
      if (this.#work !== work) return;
      if (answer.suggestions?.some(Boolean)) {
        this.#show(answer);
        const must = this.me.project.help.require_verification;
        this.#tell(`Your first pass is saved. Below each step is now what the model says of it.${must ? " The item counts once each suggestion is accepted or overridden." : ""}`, [
          button("Reopen (r)", () => this.#reopen(), { class: "strong" }),
          must ? "" : button("Next (s)", () => this.#goOn()),
        ]);
        return;
      }
    }
    await this.open(null, id);
    await this.shell.progress();
  }

  /** Wait until nothing of the item is on its way. */
  async #sent(id) {
    await this.outbox.flush();
    while (this.outbox.of(id).length && !this.outbox.held(id) && this.item === id) {
      await new Promise((done) => setTimeout(done, 200));
    }
  }

  #reopen() {
    if (this.#board.change({ kind: "reopen" }, "Reopened")) this.notice.hidden = true;
  }

  #back() {
    const at = this.#seen.lastIndexOf(this.#work.id);
    if (at < 1) return void say("There is no solution before this one on this visit: see the list (l).", { shown: true });
    const id = this.#seen[at - 1];
    this.#seen.length = at;
    this.open(id);
  }

  #tell(words, buttons = []) {
    this.notice.replaceChildren(make("p", {}, words), make("div", { class: "row" }, buttons));
    this.notice.hidden = false;
  }

  #notices() {
    const work = this.#work;
    if (work.clashing.length) {
      this.#tell(
        `This item was changed in another tab or browser. You see what is saved; ${count(work.clashing.length, "change")} made here ${work.clashing.length === 1 ? "is" : "are"} not in it.`,
        [
          button("Keep the saved version", () => this.#settle(() => work.dropMine())),
          button("Apply my changes to it", () =>
            this.#settle(() => {
              const { fit, all } = work.keepMine();
              if (fit < all) say(`Left out ${all - fit} of ${count(all, "change")}, which no longer fit.`, { shown: true, bad: true });
            }),
          ),
        ],
      );
    } else if (this.outbox.held(work.id)) {
      this.#tell(`The server refused ${count(this.outbox.of(work.id).length, "change")} of this item: ${this.outbox.held(work.id)}`, [
        button("Try again", () => (this.outbox.rebase(work.id, this.outbox.of(work.id), work.stored.length), (this.notice.hidden = true))),
        button("Discard them", () => (this.outbox.drop(work.id), this.open(work.id))),
      ]);
    } else if (work.folding.submitted) {
      this.#tell("You have submitted this one. Reopen it (r) to change it.");
    } else this.notice.hidden = true;
  }

  #settle(how) {
    how();
    this.#board.paint();
    this.#notices();
  }

  /** The outbox heard that another tab or browser changed an item, or that the server refused one. */
  async trouble(item) {
    const work = this.#work;
    if (work?.id !== item) return;
    if (this.outbox.held(item) === "clash") {
      const answer = await ask("GET", itemPath(item));
      if (this.#work !== work) return;
      work.refresh(answer);
      this.#board.paint();
    }
    this.#notices();
  }

  /** The server has a change: what is stored grows by it. */
  acknowledged({ item, id, change }) {
    if (this.#work?.id === item) this.#work.stored.push({ ...change, id });
  }

  #end({ reason, progress }) {
    this.me.progress = progress; // with what was submitted last
    const words = {
      done: ["All done", "There is nothing left for you to label. Thank you."],
      waiting: ["Nothing at the moment", "Other annotators have what is left open. This page checks again every half minute."],
      "screening-failed": ["The test was not passed", "Your answers differ too often from the known ones. Ask the person who invited you."],
    }[reason] ?? ["Nothing to label", visible(reason ?? "")];
    this.#nothing(...words);
    if (reason === "waiting") {
      const before = this.main.firstChild;
      setTimeout(() => this.main.firstChild === before && this.open(null), 30_000);
    }
  }

  #nothing(title, words, next = null) {
    history.replaceState(null, "", "#/label");
    const { progress } = this.me;
    const done = progress ? `${progress.submitted} of ${progress.of} submitted${progress.seconds_each ? `, ${duration(progress.seconds_each)} each` : ""}.` : "";
    this.main.replaceChildren(
      make("section", { class: "nothing" }, make("h1", {}, title), make("p", {}, visible(words)), make("p", { class: "note" }, done), make("p", {}, next, " ", make("a", { href: "#/mine" }, "My solutions"))),
    );
  }
}
