// The steps of one item, in order. They are made in boxes of a few when these come near the window, so that thousands open at
// once; what is said of a step is painted again only where it changed.

import { Card } from "./card.js";
import { make, visible } from "./dom.js";
import { Rail } from "./rail.js";

const BOX = 20; // rows that are made together
const NEAR = "1200px";

export class StepList {
  #boxes = []; // { element, rows }, rows null once it is made
  #boxOf = []; // step -> its box
  #cards = [];
  #states = [];
  #near = new IntersectionObserver((seen) => this.#come(seen), { rootMargin: NEAR });

  /** `work`: what is shown and said. `press(action, step)`: a control was used. `aside(step)`: an element to show with a step. */
  constructor(work, press, aside = null) {
    const { project, view } = work;
    this.work = work;
    this.press = press;
    this.aside = aside;
    this.current = null;
    this.count = view.steps.length;
    this.words = { "-1": project.reward_labels.incorrect, 0: project.reward_labels.neutral, 1: project.reward_labels.correct };
    this.rail = new Rail(this.count, (step) => this.go(step));
    this.element = make("div", { class: `steps ${project.mode}`, attr: { role: "region" }, aria: { label: "Steps" } });
    const rows = view.steps.map((shown, step) => ({ ...shown, step }));
    for (let at = 0; at < rows.length; at += BOX) this.#box(rows.slice(at, at + BOX));
    // Not when the finger comes down: what then becomes current may move, and the click would land on something else.
    this.element.addEventListener("click", ({ target }) => this.#touched(target));
    this.element.addEventListener("focusin", ({ target }) => target.matches(":focus-visible") && this.#touched(target));
  }

  #box(rows) {
    // Until it is made: about as high as it will be, and its text is found by the browser's search.
    const height = rows.reduce((sum, { text }) => sum + Math.min(520, 70 + 24 * Math.floor(text.length / 85)), 0);
    const element = make("ol", { class: "box" }, make("li", { class: "txt" }, visible(rows.map(({ text }) => text.slice(0, 600)).join("\n"))));
    element.style.setProperty("contain-intrinsic-height", `auto ${height}px`);
    element.style.setProperty("height", `${height}px`);
    const box = { element, rows };
    element.box = box;
    for (const { step } of rows) this.#boxOf[step] = box;
    this.#boxes.push(box);
    this.element.append(element);
    this.#near.observe(element);
  }

  #come(seen) {
    for (const { isIntersecting, target } of seen) if (isIntersecting) this.#build(target.box);
  }

  #build(box) {
    const { element, rows } = box;
    if (!rows) return;
    box.rows = null;
    this.#near.unobserve(element);
    element.style.removeProperty("height");
    element.replaceChildren(
      ...rows.map((row) => {
        const card = new Card(row, this);
        this.#cards[row.step] = card;
        card.paint(this.state(row.step), row.step === this.current);
        return card.element;
      }),
    );
  }

  #touched(target) {
    const step = target.closest?.(".step")?.dataset.step;
    if (step !== undefined && Number(step) !== this.current) this.go(Number(step), { focus: false, scroll: false });
  }

  /** right, wrong, neutral, none (not marked yet) or unjudged (after the first error). */
  state(step) {
    const { folding } = this.work;
    const rating = folding.rating(step);
    if (rating !== null) return rating < 0 ? "wrong" : rating > 0 ? "right" : "neutral";
    return folding.mode === "first_error" && folding.firstError !== null ? "unjudged" : "none";
  }

  /** A step and what is said of it, in words. */
  said(step, state) {
    const { folding } = this.work;
    const inFirst = folding.mode === "first_error";
    const words = {
      right: inFirst ? "right, before the first error" : this.words[1],
      wrong: inFirst ? "first wrong step" : this.words[-1],
      neutral: this.words[0],
      none: "not judged yet",
      unjudged: "not judged, after the first error",
    }[state];
    const also = [folding.unsure(step) && "unsure", folding.note(step) && "has a note", folding.errorType(step)].filter(Boolean);
    return `Step ${step + 1} of ${this.count}: ${[words, ...also].map(visible).join(", ")}`;
  }

  /** Paint what changed; returns the steps whose mark is another. */
  paint() {
    const changed = [];
    for (let step = 0; step < this.count; step++) {
      const state = this.state(step);
      if (this.#states[step] !== state) {
        this.#states[step] = state;
        changed.push(step);
      }
      this.#paintOne(step, state);
    }
    return changed;
  }

  #paintOne(step, state) {
    this.rail.paint(step, state, this.work.folding.unsure(step), () => this.said(step, state));
    this.#cards[step]?.paint(state, step === this.current);
  }

  repaint(step) {
    this.#cards[step].forget();
    this.#paintOne(step, this.state(step));
  }

  /** Make a step the current one. */
  go(step, { focus = true, scroll = true } = {}) {
    const before = this.current;
    this.current = Math.max(0, Math.min(this.count - 1, step));
    const card = this.card(this.current);
    const top = scroll ? null : card.getBoundingClientRect().top;
    if (before !== this.current) {
      if (before !== null) this.#paintOne(before, this.state(before));
      this.#paintOne(this.current, this.state(this.current));
      this.rail.current(this.current, before);
    }
    if (focus) card.focus({ preventScroll: true });
    if (scroll) show(card);
    // What was touched stays where it is, whatever the other card took or gave.
    else scrollBy({ top: card.getBoundingClientRect().top - top, behavior: "instant" });
  }

  /** Where words about a step are written. */
  place(step) {
    this.card(step);
    return this.#cards[step].more;
  }

  card(step) {
    this.#build(this.#boxOf[step]);
    return this.#cards[step].element;
  }
}

/** Scroll as little as shows the card with some room around it, or its head where it is higher than the window. */
function show(card) {
  const edges = [...document.querySelectorAll(".top,.rail")].map((one) => one.getBoundingClientRect());
  const isNarrow = matchMedia("(max-width: 900px)").matches; // where the rail lies above the steps
  const top = edges[0].bottom + (isNarrow ? edges[1].height : 0) + 12;
  const foot = innerHeight - (document.querySelector(".foot")?.offsetHeight ?? 0);
  const room = Math.min(90, (foot - top) / 6); // of the step after it, so that one reads ahead
  const move = () => {
    const box = card.getBoundingClientRect();
    if (box.top < top) return box.top - top;
    return box.bottom > foot - room ? Math.min(box.bottom - foot + room, box.top - top) : 0;
  };
  const by = move();
  if (!by) return;
  const isFar = Math.abs(by) > innerHeight || matchMedia("(prefers-reduced-motion: reduce)").matches;
  scrollBy({ top: by, behavior: isFar ? "instant" : "smooth" });
  // What lies on the way had a guessed height until it came near.
  if (isFar) requestAnimationFrame(() => scrollBy({ top: move(), behavior: "instant" }));
}
