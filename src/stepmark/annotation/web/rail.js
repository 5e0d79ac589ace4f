// The rail: one small cell a step, coloured by what is said of it.

import { make } from "./dom.js";

const BOX = 50; // cells that are made together

export class Rail {
  #boxes = [];
  #cells = [];
  #painted = []; // what each cell shows, or will show once it is made
  #words = [];
  #current = null;

  constructor(steps, go) {
    this.steps = steps;
    this.element = make("nav", { class: "rail", aria: { label: "Steps" } });
    const near = new IntersectionObserver((seen) => seen.forEach(({ isIntersecting, target }) => isIntersecting && this.#build(this.#boxes.indexOf(target))), { rootMargin: "600px" });
    for (let at = 0; at < steps; at += BOX) {
      const box = make("div", { class: "group" });
      box.style.setProperty("--cells", Math.min(BOX, steps - at));
      this.#boxes.push(box);
      near.observe(box);
    }
    this.element.append(...this.#boxes);
    if (steps <= BOX) this.#build(0);
    this.element.addEventListener("click", ({ target }) => {
      const { step } = target.dataset;
      if (step !== undefined) go(Number(step));
    });
  }

  #build(at) {
    const box = this.#boxes[at];
    if (box.childElementCount) return;
    for (let step = at * BOX; step < Math.min(this.steps, (at + 1) * BOX); step++) {
      this.#cells[step] = make("button", { type: "button", tabIndex: -1, data: { step } }, String(step + 1));
      box.append(this.#cells[step]);
      this.#show(step);
    }
  }

  #show(step) {
    const cell = this.#cells[step];
    if (!cell) return;
    cell.className = this.#painted[step] ?? "none";
    cell.setAttribute("aria-label", this.#words[step]?.() ?? `Step ${step + 1}`);
    if (step === this.#current) cell.setAttribute("aria-current", "step");
    else cell.removeAttribute("aria-current");
  }

  /** `state` as in `StepList`; `words()`: for a screen reader. */
  paint(step, state, isUnsure, words) {
    const painted = isUnsure ? `${state} unsure` : state;
    if (this.#painted[step] === painted) return;
    this.#painted[step] = painted;
    this.#words[step] = words;
    this.#show(step);
  }

  current(step, before) {
    this.#current = step;
    this.#build(Math.floor(step / BOX));
    if (before !== null) this.#show(before);
    this.#show(step);
    // Only the rail itself scrolls: `scrollIntoView` would move the page as well.
    const box = this.element.getBoundingClientRect();
    const place = this.#cells[step].getBoundingClientRect();
    if (place.top < box.top + 40 || place.bottom > box.bottom - 40) this.element.scrollTop += place.top - box.top - box.height / 2;
    if (place.left < box.left + 40 || place.right > box.right - 40) this.element.scrollLeft += place.left - box.left - box.width / 2;
  }
}
