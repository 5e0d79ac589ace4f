// The steps of one item, as cards with their controls. A card is made when it comes near the window, so that thousands open
// at once; what is said of a step is painted again only where it changed.

import { button, make, visible } from "./dom.js";
import { Rail } from "./rail.js";
import { longText, output, toolCall } from "./parts.js";

const SIGNS = { "-1": "✗", 0: "○", 1: "✓" };

/** What is shown, in order: steps, and turns of the trace between them that nobody rates. */
function rowsOf(view, inline) {
  const plain = view.steps.map((said, step) => ({ step, text: said.text, observation: said.observation }));
  if (!inline || !view.trace?.length) return plain;
  const covered = new Set(view.trace.map(({ step }) => step).filter((step) => step !== null));
  // A trace that leaves out a step would leave it without a control.
  return covered.size === plain.length ? view.trace : plain;
}

export class StepList {
  #cards = [];
  #painted = [];
  #near;

  /**
   * `work`: what is shown and said. `press(action, step)`: a control was used. `aside(step)`: more to show beside a step, or null.
   */
  constructor(work, press, { aside = null, pick = null } = {}) {
    this.work = work;
    this.press = press;
    this.aside = aside;
    this.pick = pick;
    this.current = null;
    const { project, view } = work;
    this.words = { "-1": project.reward_labels.incorrect, 0: project.reward_labels.neutral, 1: project.reward_labels.correct };
    this.count = view.steps.length;
    this.rail = new Rail(this.count, (step) => this.go(step));
    this.element = make("ol", { class: `steps ${project.mode}`, aria: { label: "Steps" } });
    this.#near = new IntersectionObserver((seen) => this.#come(seen), { rootMargin: "1500px" });
    for (const row of rowsOf(view, project.inline_with_trace)) this.element.append(this.#card(row));
    this.element.addEventListener("pointerdown", ({ target }) => this.#touched(target));
    this.element.addEventListener("focusin", ({ target }) => this.#touched(target));
  }

  #touched(target) {
    const step = target.closest?.(".step")?.dataset.step;
    if (step !== undefined && Number(step) !== this.current) this.go(Number(step), { focus: false, scroll: false });
  }

  #card(row) {
    const step = row.step ?? null;
    const card = make("li", { class: step === null ? `turn ${/^[a-z]+$/.test(row.role) ? row.role : ""}` : "step" });
    if (step !== null) {
      card.id = `step-${step}`;
      card.dataset.step = step;
      card.tabIndex = -1;
      this.#cards[step] = card;
    }
    // Until it is made: about as high as it will be, and found by the browser's search.
    card.style.setProperty("contain-intrinsic-height", `auto ${Math.min(520, 64 + 24 * Math.ceil((row.text ?? "").length / 80))}px`);
    card.append(make("div", { class: "txt" }, visible((row.text ?? "").slice(0, 600))));
    card.row = row;
    this.#near.observe(card);
    return card;
  }

  #come(seen) {
    for (const { isIntersecting, target } of seen) if (isIntersecting) this.#build(target);
  }

  #build(card) {
    const { row } = card;
    if (!row) return;
    card.row = null;
    this.#near.unobserve(card);
    const said = make("div", { class: "said" });
    if (row.role) said.append(make("span", { class: "label" }, visible(row.role)));
    if (row.text?.trim()) said.append(longText(row.text));
    for (const [name, input] of row.calls ?? []) said.append(toolCall(name, input));
    for (const text of row.outputs ?? []) said.append(output(text));
    if (row.observation?.trim()) said.append(output(row.observation.trim(), "what came back"));
    if (!said.childElementCount || (row.role && said.childElementCount === 1)) said.append(make("p", { class: "note" }, "(no text)"));
    const step = row.step ?? null;
    if (step === null) {
      card.replaceChildren(said);
      return;
    }
    const more = make("div", { class: "more" });
    const marks = make("div", { class: "marks", attr: { role: "group" }, aria: { label: `Mark of step ${step + 1}` } });
    const beside = this.aside?.(step);
    card.replaceChildren(make("div", { class: "n", aria: { hidden: "true" } }, String(step + 1)), said, marks, ...(beside ? [beside] : []), more);
    this.#marks(step, marks);
    const skipped = make("span", { class: "skipped", hidden: true }, "not judged");
    marks.append(skipped);
    card.made = { marks, more, skipped };
    this.#painted[step] = null;
    this.paintOne(step);
  }

  #marks(step, place) {
    const { mode } = this.work.folding;
    const one = (rating, action, words, kind) =>
      button([make("b", { aria: { hidden: "true" } }, SIGNS[rating]), make("span", {}, words)], () => this.press(action, step), {
        class: `mark ${kind}`,
        title: words,
        data: { rating },
        aria: { pressed: "false" },
      });
    if (mode === "first_error") {
      place.append(one(-1, "wrong", "First error", "bad"));
      return;
    }
    place.append(one(-1, "wrong", this.words[-1], "bad"));
    if (this.work.folding.allowNeutral) place.append(one(0, "neutral", this.words[0], "warn"));
    place.append(one(1, "right", this.words[1], "good"));
  }

  /** right, wrong, neutral, none (not said yet) or unjudged (after the first error). */
  state(step) {
    const { folding } = this.work;
    const rating = folding.rating(step);
    if (rating !== null) return { "-1": "wrong", 0: "neutral", 1: "right" }[rating];
    return folding.mode === "first_error" && folding.firstError !== null ? "unjudged" : "none";
  }

  #said(step, state) {
    const { folding } = this.work;
    const words = {
      right: folding.mode === "first_error" ? "right, before the first error" : this.words[1],
      wrong: folding.mode === "first_error" ? "first wrong step" : this.words[-1],
      neutral: this.words[0],
      none: "not judged yet",
      unjudged: "not judged, after the first error",
    }[state];
    const also = [folding.unsure(step) && "unsure", folding.note(step) && "has a note", folding.errorType(step)].filter(Boolean);
    return `Step ${step + 1} of ${this.count}: ${[visible(words), ...also.map(visible)].join(", ")}`;
  }

  /** Paint what changed; returns those steps. */
  paint() {
    const changed = [];
    for (let step = 0; step < this.count; step++) if (this.paintOne(step)) changed.push(step);
    return changed;
  }

  paintOne(step) {
    const { folding } = this.work;
    const card = this.#cards[step];
    const state = this.state(step);
    const here = step === this.current;
    const key = [state, here, folding.unsure(step), folding.verified(step), folding.errorType(step), folding.note(step), folding.submitted, this.work.helped].join("\n");
    if (this.#painted[step] === key) return false;
    this.#painted[step] = key;
    const words = this.#said(step, state);
    this.rail.paint(step, state, words, folding.unsure(step));
    card.dataset.state = state;
    card.classList.toggle("here", here);
    card.setAttribute("aria-label", words);
    if (!card.made) return true;
    const rating = folding.rating(step);
    card.made.skipped.hidden = state !== "unjudged" || here;
    for (const one of card.made.marks.querySelectorAll("button")) {
      const shown = folding.mode === "first_error" ? (rating === -1 ? "-1" : null) : String(rating);
      one.setAttribute("aria-pressed", String(one.dataset.rating === shown));
      one.disabled = folding.submitted;
      one.tabIndex = here ? 0 : -1;
    }
    this.#more(step, card.made.more, here, state);
    return true;
  }

  /** The line below a step: suggestion, flags, note. While a note is being written it stays as it is. */
  #more(step, place, here, state) {
    if (place.querySelector("textarea")) return;
    const { folding, project, suggestions } = this.work;
    const can = !folding.submitted;
    const tab = here ? 0 : -1;
    const parts = [];
    const suggestion = suggestions?.[step];
    if (suggestion) parts.push(this.#suggestion(step, suggestion, tab));
    const small = (words, action, pressed, title) =>
      button(words, () => this.press(action, step), { class: "small", title, tabIndex: tab, disabled: !can, aria: { pressed: String(Boolean(pressed)) } });
    const tools = make("div", { class: "tools" });
    tools.append(small("Unsure", "unsure", folding.unsure(step), "Unsure of this step (u)"));
    if (!folding.note(step)) tools.append(small("Note", "note", false, "Note on this step (m)"));
    if (project.error_types.length && folding.rating(step) === -1) {
      tools.append(small(visible(folding.errorType(step) ?? "Error type"), "type", folding.errorType(step), "Type of the error (t)"));
    }
    if (this.pick) tools.append(...this.pick(step));
    parts.push(tools);
    if (folding.note(step)) {
      parts.push(button(visible(folding.note(step)), () => this.press("note", step), { class: "written", tabIndex: tab, disabled: !can, title: "Change the note (m)" }));
    }
    place.replaceChildren(...parts);
  }

  #suggestion(step, { judge, rating, score, reason }, tab) {
    const { folding } = this.work;
    const done = folding.verified(step);
    const own = folding.rating(step);
    const overridden = done && rating !== null && own !== null && own !== rating;
    const verdict = rating === null ? "" : `${SIGNS[rating]} ${this.words[rating].toLowerCase()}`;
    const line = make(
      "div",
      { class: `suggestion ${rating === null ? "" : { "-1": "bad", 0: "warn", 1: "good" }[rating]}` },
      make("span", { class: "who" }, visible(judge)),
      verdict ? make("b", {}, visible(verdict)) : null,
      score === null || score === undefined ? null : make("span", { class: "score" }, score.toFixed(2)),
      done
        ? make("span", { class: "done" }, overridden ? "overridden" : "accepted")
        : button("Accept", () => this.press("accept", step), { class: "small", tabIndex: tab, title: "Accept (a)", disabled: folding.submitted }),
      reason ? make("p", { class: "reason" }, visible(reason)) : null,
    );
    return line;
  }

  /** Make a step the current one. */
  go(step, { focus = true, scroll = true } = {}) {
    const before = this.current;
    const wanted = Math.max(0, Math.min(this.count - 1, step));
    const card = this.#cards[wanted];
    this.#build(card);
    this.current = wanted;
    if (before !== wanted) {
      if (before !== null) {
        this.#cards[before].tabIndex = -1;
        this.paintOne(before);
      }
      card.tabIndex = 0;
      this.paintOne(wanted);
      this.rail.current(wanted, before);
    }
    if (focus) card.focus({ preventScroll: true });
    if (scroll) show(card);
  }

  repaint(step) {
    this.#painted[step] = null;
    this.paintOne(step);
  }

  /** Where words about a step are written. */
  place(step) {
    this.#build(this.#cards[step]);
    return this.#cards[step].made.more;
  }

  card(step) {
    return this.#cards[step];
  }
}

/** Scroll as little as shows the card with some room around it, or its head where it is higher than the window. */
function show(card) {
  const head = document.querySelector(".top")?.getBoundingClientRect().bottom ?? 0;
  const rail = getComputedStyle(document.querySelector(".rail")).position === "sticky" && innerWidth < 900 ? document.querySelector(".rail").offsetHeight : 0;
  const foot = innerHeight - (document.querySelector(".foot")?.offsetHeight ?? 0);
  const top = head + rail + 12;
  const room = Math.min(90, (foot - top) / 6); // of the step after it, so that one reads ahead
  const move = () => {
    const box = card.getBoundingClientRect();
    if (box.top < top) return box.top - top;
    if (box.bottom > foot - room) return Math.min(box.bottom - foot + room, box.top - top);
    return 0;
  };
  const by = move();
  if (!by) return;
  const far = Math.abs(by) > innerHeight || matchMedia("(prefers-reduced-motion: reduce)").matches;
  scrollBy({ top: by, behavior: far ? "instant" : "smooth" });
  // Cards on the way there had a guessed height until they came into view.
  if (far) requestAnimationFrame(() => scrollBy({ top: move(), behavior: "instant" }));
}
