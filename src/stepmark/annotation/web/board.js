// The steps of one item, and what is marked on them: moved among and marked by key, mouse and touch. What is shown is what the server answered; a
// click that is on its way has an outline.

import { button, count, dialog, foldIn, make, partOf, say, visible } from "./dom.js";
import { isTyped, keysOf, pressed, setting, showHelp } from "./keys.js";

export const SIGNS = { "-1": "✗", 0: "○", 1: "✓", null: "–" };
export const KINDS = { "-1": "bad", 0: "warn", 1: "good", null: "none" };
const ACTIONS = { "-1": "wrong", 0: "neutral", 1: "right" };

export class Board {
  #keys = new Map();
  #hear = (event) => this.#key(event);
  #leave = () => this.#endNote?.(true);
  #endNote = null; // what writes the note that is being written
  #cards = [];
  #near = new IntersectionObserver((seen) => seen.forEach(({ isIntersecting, target }) => isIntersecting && this.#build(Number(target.dataset.step))), { rootMargin: "1200px" });
  here = 0;

  /** `answer`: an item and its state, as the server gives them. `send(change)`. `when`: names that `keys.js` knows. `aside(step)`: what stands below a step. */
  constructor(answer, project, { send, when, actions, aside = () => null, painted }) {
    Object.assign(this, { item: answer.item, project, send, aside, painted });
    this.count = answer.item.steps.length;
    this.isDeciding = when.includes("deciding");
    this.words = { "-1": project.reward_labels.incorrect, 0: project.reward_labels.neutral, 1: project.reward_labels.correct };
    this.when = new Set([...when, project.mode]);
    if (project.allow_neutral) this.when.add("neutral");
    if (project.error_types.length) this.when.add("types");
    if (project.help.show !== "never" && !this.isDeciding) this.when.add("help");
    this.actions = { ...this.#own(), ...actions };
    for (const { action, keys } of keysOf(this.when)) for (const one of keys) this.#keys.set(one, action);
    this.list = make("ol", { class: `steps ${project.mode} ${project.inline_with_trace ? "inline" : ""}`, aria: { label: "Steps" } });
    this.rail = make("nav", { class: "rail", aria: { label: "Steps by number" } });
    for (let step = 0; step < this.count; step++) {
      const cell = make("button", { type: "button", tabIndex: -1, data: { step } }, String(step + 1));
      const element = make("li", { class: "step", id: `step-${step}`, tabIndex: -1, data: { step } });
      this.#cards.push({ step, cell, element, painted: null, isBuilt: false });
      this.rail.append(cell);
      this.list.append(element);
      this.#near.observe(element);
    }
    this.rail.addEventListener("click", ({ target }) => target.dataset.step && this.go(Number(target.dataset.step)));
    // Not when the finger comes down: what then becomes the current step may move, and the click would land on something else.
    this.list.addEventListener("click", ({ target }) => this.#touched(target));
    this.list.addEventListener("focusin", ({ target }) => target.matches(":focus-visible") && this.#touched(target));
    this.whole = make("section", { class: "whole", aria: { label: "The whole solution" } });
    this.about = this.#about();
    this.element = make("div", { class: "board" }, this.about, this.rail, make("div", { class: "column" }, this.list, this.whole));
    document.addEventListener("keydown", this.#hear);
    addEventListener("pagehide", this.#leave);
    this.sent = new Map();
    this.#take(answer);
  }

  /** To be called once the element is in the page. */
  start() {
    const { first_error: first, ratings } = this.state.marks;
    const open = ratings.findIndex((rating, step) => rating === null && !this.unsure.has(step));
    const step = Math.max(0, this.project.mode === "first_error" ? (first ?? 0) : open);
    this.#paint();
    this.go(step, { scroll: step > 0 });
    // What lies before it had a guessed height until now.
    if (step > 0) setTimeout(() => this.here === step && this.element.isConnected && this.go(step, { focus: false }), 300);
  }

  stop() {
    this.#endNote?.(true);
    this.#near.disconnect();
    document.removeEventListener("keydown", this.#hear);
    removeEventListener("pagehide", this.#leave);
  }

  #take(state) {
    this.state = state;
    const { unsure, notes, error_types: types } = state.marks;
    this.unsure = new Set(unsure);
    this.notes = new Map(notes);
    this.types = new Map(types);
  }

  /** What the server answered. Gives the steps whose rating is another than before. */
  update(state) {
    if (state.version < this.state.version) return []; // an answer to an older question
    if (!state.marks.submitted) this.isReopening = false;
    const before = this.state.marks.ratings;
    this.#take(state);
    this.#paint();
    return state.marks.ratings.flatMap((rating, step) => (rating === before[step] ? [] : [step]));
  }

  /** The clicks that are on their way, as entries of the outbox. */
  waiting(entries) {
    const marks = entries.filter(({ change }) => ["rate", "first_error"].includes(change.kind));
    this.sent = new Map(marks.map(({ change }) => [change.step, change.kind === "first_error" ? -1 : change.rating]));
    this.#paint();
  }

  /** Whether it is submitted, and not being reopened. */
  get isSubmitted() {
    return this.state.marks.submitted && !this.isReopening;
  }

  // The judgements of a step.

  rating(step) {
    return this.state.marks.ratings[step];
  }

  /** right, wrong, neutral, none (not marked yet) or unjudged (after the first error). */
  stateOf(step) {
    const rating = this.rating(step);
    if (rating !== null) return rating < 0 ? "wrong" : rating > 0 ? "right" : "neutral";
    return this.project.mode === "first_error" && this.state.marks.first_error !== null ? "unjudged" : "none";
  }

  #said(step, state) {
    const isFirst = this.project.mode === "first_error";
    const words = {
      right: isFirst ? "right, before the first error" : this.words[1],
      wrong: isFirst ? "first wrong step" : this.words[-1],
      neutral: this.words[0],
      none: "not judged yet",
      unjudged: "not judged, after the first error",
    }[state];
    const also = [this.unsure.has(step) && "unsure", this.notes.has(step) && "has a note", this.types.get(step)].filter(Boolean);
    return `Step ${step + 1} of ${this.count}: ${[words, ...also].map(visible).join(", ")}`;
  }

  // Painting.

  #paint() {
    for (const card of this.#cards) this.#paintCard(card);
    this.#paintWhole();
    this.painted();
  }

  #paintCard(card) {
    const { step, cell, element } = card;
    const state = this.stateOf(step);
    const isHere = step === this.here;
    const { marks, suggestions } = this.state;
    const own = [state, isHere, this.sent.has(step) && this.sent.get(step), this.unsure.has(step), this.notes.get(step), this.types.get(step), marks.submitted, Boolean(suggestions)];
    const painted = own.join("\n");
    if (card.painted === painted && card.paintedBuilt === card.isBuilt) return;
    Object.assign(card, { painted, paintedBuilt: card.isBuilt });
    cell.className = `${state}${this.unsure.has(step) ? " unsure" : ""}`;
    for (const one of [cell, element]) one.setAttribute("aria-label", this.#said(step, state));
    if (isHere) cell.setAttribute("aria-current", "step");
    else cell.removeAttribute("aria-current");
    element.dataset.state = state;
    element.classList.toggle("here", isHere);
    element.tabIndex = isHere ? 0 : -1;
    if (!card.isBuilt) return;
    const rating = this.rating(step);
    const shown = this.project.mode === "first_error" && rating !== -1 ? null : String(rating);
    for (const one of card.marks.children) {
      one.setAttribute("aria-pressed", String(one.dataset.rating === shown));
      one.classList.toggle("sent", String(this.sent.get(step)) === one.dataset.rating);
      one.disabled = marks.submitted;
      one.tabIndex = isHere ? 0 : -1;
    }
    if (!card.more.querySelector("textarea")) this.#paintMore(card, isHere ? 0 : -1);
  }

  /** The line below a step: suggestion, note, flags. */
  #paintMore({ step, more }, tabIndex) {
    const disabled = this.state.marks.submitted;
    const small = (words, action, isOn, title) => button(words, () => this.press(action, step), { class: "small", title, tabIndex, disabled, aria: { pressed: String(isOn) } });
    const note = this.notes.get(step);
    const type = this.types.get(step);
    const suggestion = this.state.suggestions?.[step];
    more.replaceChildren(
      suggestion ? this.#suggestion(suggestion, step, { tabIndex, disabled }) : "",
      note ? button(visible(note), () => this.press("note", step), { class: "written", tabIndex, disabled, title: "Change the note (m)" }) : "",
      make(
        "div",
        { class: "tools" },
        this.isDeciding ? null : small("Unsure", "unsure", this.unsure.has(step), "Unsure of this step (u)"),
        note ? null : small("Note", "note", false, "Note on this step (m)"),
        this.project.error_types.length && this.rating(step) === -1 ? small(visible(type ?? "Error type"), "type", Boolean(type), "Type of the error (t)") : null,
      ),
    );
  }

  #suggestion({ judge, rating, score, reason }, step, props) {
    const own = this.rating(step);
    const isOpen = own !== rating && (this.project.mode === "per_step" ? rating !== null : rating === -1);
    return make(
      "div",
      { class: `suggestion ${KINDS[rating]}` },
      make("span", { class: "note" }, visible(judge)),
      rating === null ? null : make("b", {}, `${SIGNS[rating]} ${visible(this.words[rating].toLowerCase())}`),
      score === null ? null : make("span", {}, score.toFixed(2)),
      isOpen ? button("Accept", () => this.press("accept", step), { class: "small", title: "Accept (a)", ...props }) : null,
      reason ? make("p", { class: "note" }, visible(reason)) : null,
    );
  }

  #paintWhole() {
    if (this.whole.querySelector("textarea")) return;
    const disabled = this.state.marks.submitted;
    const small = (words, action, isOn, title) => button(words, () => this.actions[action]({}), { class: "small", title, disabled, aria: { pressed: String(isOn) } });
    const note = this.notes.get(null);
    this.whole.replaceChildren(
      make("span", { class: "label" }, "The whole solution"),
      this.isDeciding ? "" : small("Unsure", "unsureAll", this.unsure.has(null), "Unsure of the whole solution (Shift+u)"),
      small("Note", "noteAll", false, "Note on the whole solution (Shift+m)"),
      note ? button(visible(note), () => this.actions.noteAll({}), { class: "written", disabled }) : "",
    );
  }

  #about() {
    const { problem, answer } = this.item;
    return make(
      "aside",
      { class: "about", aria: { label: "Problem" } },
      make(
        "details",
        { open: true },
        make("summary", {}, "Problem ", make("span", { class: "note" }, count(this.count, "step"))),
        partOf(problem),
        answer ? make("div", { class: "answer" }, make("span", { class: "label" }, "Reference answer"), partOf(answer)) : null,
      ),
      make("p", { class: "task note" }, visible(this.project.description)),
    );
  }

  /** A step's own elements are made when it comes near the window, so that thousands open at once. */
  #build(step) {
    const card = this.#cards[step];
    if (card.isBuilt) return card;
    this.#near.unobserve(card.element);
    const { speaker, parts } = this.item.steps[step];
    const isInline = this.project.inline_with_trace;
    const isAfter = ({ kind }) => kind === "output" || kind === "turn";
    const own = parts.filter((part) => !isAfter(part)).map((part) => partOf(part, isInline && this.item.trace ? (speaker ?? "agent") : ""));
    const isPaired = own.length > 1 && parts[0].kind === "thought";
    card.isBuilt = true;
    card.marks = make("div", { class: "marks", attr: { role: "group" }, aria: { label: `Mark of step ${step + 1}` } });
    card.more = make("div", { class: "more" });
    card.element.replaceChildren(
      make("div", { class: "n", aria: { hidden: "true" } }, String(step + 1)),
      make("div", { class: isPaired ? "turn-itself paired" : "turn-itself" }, speaker && !isInline ? make("span", { class: "chip speaker" }, speaker) : null, own),
      card.marks,
      make("div", { class: "after" }, parts.filter(isAfter).map((part) => partOf(part))),
      this.aside(step) ?? "",
      card.more,
    );
    const first = this.item.trace ? "Decisive error" : "First error";
    const ratings = this.project.mode === "first_error" ? [-1] : this.project.allow_neutral ? [-1, 0, 1] : [-1, 1];
    for (const rating of ratings) {
      const words = this.project.mode === "first_error" ? first : visible(this.words[rating]);
      const sign = make("b", { aria: { hidden: "true" } }, SIGNS[rating]);
      card.marks.append(
        button([sign, make("span", {}, words)], () => this.press(ACTIONS[rating], step), { class: `mark ${KINDS[rating]}`, title: words, data: { rating }, aria: { label: words } }),
      );
    }
    this.#paintCard(card);
    return card;
  }

  // Moving.

  /** Make a step the current one. */
  go(step, { focus = true, scroll = true } = {}) {
    const before = this.here;
    this.here = Math.max(0, Math.min(this.count - 1, step));
    const { element, cell } = this.#build(this.here);
    const top = element.getBoundingClientRect().top;
    for (const one of [before, this.here]) this.#paintCard(this.#cards[one]);
    if (focus) element.focus({ preventScroll: true });
    // Only the rail itself scrolls: `scrollIntoView` would move the page as well.
    const [box, place] = [this.rail.getBoundingClientRect(), cell.getBoundingClientRect()];
    if (place.top < box.top + 40 || place.bottom > box.bottom - 40) this.rail.scrollTop += place.top - box.top - box.height / 2;
    if (place.left < box.left + 40 || place.right > box.right - 40) this.rail.scrollLeft += place.left - box.left - box.width / 2;
    // What was touched stays where it is, whatever the other card took or gave.
    if (!scroll) scrollBy({ top: element.getBoundingClientRect().top - top, behavior: "instant" });
    else this.#show(element);
  }

  /** Scroll as little as shows the step with some room around it, or its head where it is higher than the window. */
  #show(element) {
    const head = document.querySelector(".top").offsetHeight + (matchMedia("(max-width: 900px)").matches ? this.rail.offsetHeight : 0) + 12;
    const foot = innerHeight - (document.querySelector(".foot")?.offsetHeight ?? 0) - 60;
    const move = () => {
      const box = element.getBoundingClientRect();
      if (box.top < head) return box.top - head;
      return box.bottom > foot ? Math.min(box.bottom - foot, box.top - head) : 0;
    };
    const isFar = Math.abs(move()) > innerHeight || matchMedia("(prefers-reduced-motion: reduce)").matches;
    scrollBy({ top: move(), behavior: isFar ? "instant" : "smooth" });
    // What lies on the way had a guessed height until it came near.
    if (isFar) requestAnimationFrame(() => scrollBy({ top: move(), behavior: "instant" }));
  }

  #touched(target) {
    const step = target.closest?.(".step")?.dataset.step;
    if (step !== undefined && Number(step) !== this.here) this.go(Number(step), { focus: false, scroll: false });
  }

  // Marking.

  #key(event) {
    if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
    const name = pressed(event);
    if (name === null || isTyped(event)) return;
    const action = this.#keys.get(name);
    if (!action || (setting("keys") === "off" && name.length === 1 && action !== "help")) return;
    event.preventDefault();
    this.actions[action]?.({ byKey: true });
  }

  /** A control was used: its step becomes the current one first. */
  press(action, step) {
    if (step !== this.here) this.go(step, { scroll: false, focus: false });
    this.actions[action]?.({ byKey: false });
    // The focus goes back to the step, so that the next key is heard there and not by the button.
    if (!["note", "type"].includes(action)) this.#cards[step].element.focus({ preventScroll: true });
  }

  change(change, words) {
    if (change.kind === "reopen") this.isReopening = true;
    else if (this.isSubmitted) return void say("This one is submitted. Reopen it (r) to change it.", { shown: true, bad: true });
    this.send(change);
    if (words) say(words);
    return undefined;
  }

  #own() {
    const rate = (rating) => ({ byKey }) => {
      const step = this.here;
      // A click on the pressed button takes it away.
      const wanted = !byKey && this.rating(step) === rating ? null : rating;
      this.change({ kind: "rate", step, rating: wanted }, `Step ${step + 1}: ${wanted === null ? "not judged" : this.words[wanted]}`);
      if (byKey && setting("advance") !== "off") this.go(step + 1);
    };
    const firstError = ({ byKey }) => {
      const step = !byKey && this.state.marks.first_error === this.here ? null : this.here;
      this.change({ kind: "first_error", step }, step === null ? "Mark removed" : `First wrong step: ${step + 1}`);
    };
    const isFirst = this.project.mode === "first_error";
    return {
      next: () => this.go(this.here + 1),
      previous: () => this.go(this.here - 1),
      first: () => this.go(0),
      last: () => this.go(this.count - 1),
      gap: () => this.seek((step) => this.stateOf(step) === "none" && !this.unsure.has(step)) ?? say("Every step is judged.", { shown: true }),
      jump: () => this.#jump(),
      wrong: isFirst ? firstError : rate(-1),
      neutral: rate(0),
      right: rate(1),
      clean: () => this.change({ kind: "first_error", step: -1 }, "No step is wrong"),
      clear: () => this.change(isFirst ? { kind: "first_error", step: null } : { kind: "rate", step: this.here, rating: null }, "Mark removed"),
      unsure: () => this.#unsure(this.here),
      unsureAll: () => this.#unsure(null),
      note: () => this.#note(this.here),
      noteAll: () => this.#note(null),
      type: () => this.#type(this.here),
      accept: () => this.#accept(this.here),
      undo: () => this.change({ kind: "undo" }, "Undone"),
      redo: () => this.change({ kind: "redo" }, "Redone"),
      fold: () => foldIn(this.#cards[this.here].element) || say("Nothing here is folded.", { shown: true }),
      foldAll: () => foldIn(this.list),
      problem: () => this.about.querySelector("details").toggleAttribute("open"),
      help: () => showHelp(this.project, this.when),
    };
  }

  /** Go to the next step, after the current one and around, for which this is so; null where there is none. */
  seek(isWanted, from = this.here + 1) {
    for (let by = 0; by < this.count; by++) {
      const step = (from + by) % this.count;
      if (isWanted(step)) {
        this.go(step);
        return step;
      }
    }
    return null;
  }

  #jump() {
    const field = make("input", { type: "number", min: "1", max: String(this.count), required: true, aria: { label: "Step" } });
    const form = make("form", { method: "dialog", class: "row" }, field, make("button", { class: "strong" }, "Go"));
    const box = dialog(`Jump to step (1 to ${this.count})`, form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      // At once, and not when the dialog tells that it is closed: the next key may come before that.
      box.close();
      this.go(Number(field.value) - 1);
    });
    field.focus();
  }

  #unsure(step) {
    const on = !this.unsure.has(step);
    this.change({ kind: "unsure", step, on }, `${step === null ? "The whole solution" : `Step ${step + 1}`}: ${on ? "unsure" : "no longer unsure"}`);
  }

  #accept(step) {
    const suggestion = this.state.suggestions?.[step];
    if (!suggestion) return void say("Nothing is suggested for this step.", { shown: true });
    const { rating } = suggestion;
    const accepted = (change) => this.change(change, `Step ${step + 1}: suggestion accepted`);
    if (this.project.mode === "per_step" && rating !== null && this.rating(step) !== rating) accepted({ kind: "rate", step, rating });
    if (this.project.mode === "first_error" && rating === -1 && this.state.marks.first_error !== step) accepted({ kind: "first_error", step });
    if (setting("advance") !== "off") this.go(step + 1);
    return undefined;
  }

  #type(step) {
    if (this.rating(step) !== -1 && this.sent.get(step) !== -1) return void say("Only a wrong step has an error type.", { shown: true, bad: true });
    const names = this.project.error_types;
    const set = (text) => {
      box.close();
      this.change({ kind: "error_type", step, text }, text ? `Step ${step + 1}: ${text}` : "Error type removed");
      this.#cards[step].element.focus({ preventScroll: true });
    };
    const own = this.types.get(step);
    const kinds = names.map((name, at) =>
      button([at < 9 ? make("kbd", {}, String(at + 1)) : null, " ", visible(name)].filter(Boolean), () => set(name), { class: "choice", aria: { pressed: String(name === own) } }),
    );
    const none = button([make("kbd", {}, "0"), " none"], () => set(null), { class: "choice" });
    const box = dialog(`Type of the error in step ${step + 1}`, make("div", { class: "choices" }, kinds, none));
    box.addEventListener("keydown", ({ key }) => {
      if (key === "0") set(null);
      else if (/^[1-9]$/.test(key) && names[key - 1] !== undefined) set(names[key - 1]);
    });
    (kinds[names.indexOf(own)] ?? kinds[0]).focus();
    return undefined;
  }

  #note(step) {
    this.#endNote?.(true);
    const place = step === null ? this.whole : this.#build(step).more;
    const label = step === null ? "Note on the whole solution" : `Note on step ${step + 1}`;
    const before = this.notes.get(step) ?? "";
    const area = make("textarea", { rows: 3, value: before, maxLength: 4000, placeholder: `${label}. Enter saves, Shift+Enter starts a line, Esc leaves it as it was.`, aria: { label } });
    this.#endNote = (isKept) => {
      this.#endNote = null;
      const text = area.value.trim();
      area.remove();
      if (isKept && text !== before) this.change({ kind: "note", step, text: text || null }, "Note saved");
      if (step !== null) this.#cards[step].painted = null;
      this.#paint();
    };
    area.addEventListener("blur", () => this.#endNote?.(true));
    area.addEventListener("keydown", (event) => {
      if ((event.key !== "Enter" || event.shiftKey || event.isComposing) && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      this.#endNote(event.key === "Enter");
      this.#cards[step ?? this.here].element.focus({ preventScroll: true });
    });
    place.prepend(area);
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }
}

/** The counts and warnings of the item, as chips. */
export function countsOf(board) {
  const { marks } = board.state;
  const chip = (kind, words) => make("span", { class: `chip ${kind}` }, visible(words));
  const parts = [];
  if (marks.mode === "first_error") {
    const error = board.item.trace ? "decisive error" : "first error";
    if (marks.first_error === null) parts.push(chip("none", `${error}: not marked yet`));
    else if (marks.first_error < 0) parts.push(chip("good", `no error in ${count(board.count, "step")}`));
    else parts.push(chip("bad", `${error}: step ${marks.first_error + 1} of ${board.count}`));
  } else {
    const of = (rating) => marks.ratings.filter((one) => one === rating).length;
    parts.push(chip("good", `${of(1)} ${board.words[1].toLowerCase()}`));
    if (board.project.allow_neutral) parts.push(chip("warn", `${of(0)} ${board.words[0].toLowerCase()}`));
    parts.push(chip("bad", `${of(-1)} ${board.words[-1].toLowerCase()}`));
    if (of(null)) parts.push(chip("none", `${of(null)} not judged`));
  }
  if (board.unsure.has(null)) parts.push(chip("odd", "unsure of the whole"));
  return parts;
}
