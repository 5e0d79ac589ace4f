// The rail: one small cell a step, coloured by what is said of it.

import { make } from "./dom.js";

const GROUP = 50; // cells in one box, so that a browser leaves out those out of sight

export class Rail {
  #cells = [];
  #painted = [];

  constructor(steps, go) {
    this.element = make("nav", { class: "rail", aria: { label: "Steps" } });
    let group;
    for (let step = 0; step < steps; step++) {
      if (step % GROUP === 0) this.element.append((group = make("div", { class: "group" })));
      const cell = make("button", { type: "button", tabIndex: -1, data: { step } }, String(step + 1));
      this.#cells.push(cell);
      group.append(cell);
    }
    this.element.addEventListener("click", ({ target }) => {
      const { step } = target.dataset;
      if (step !== undefined) go(Number(step));
    });
  }

  /** `state` as in `StepList`, `words` for a screen reader. */
  paint(step, state, words, isUnsure) {
    const painted = `${state}${isUnsure ? " unsure" : ""}`;
    if (this.#painted[step] === painted) return;
    this.#painted[step] = painted;
    this.#cells[step].className = painted;
    this.#cells[step].setAttribute("aria-label", words);
  }

  current(step, before) {
    if (before !== null) this.#cells[before]?.removeAttribute("aria-current");
    const cell = this.#cells[step];
    cell.setAttribute("aria-current", "step");
    // Only the rail itself scrolls: `scrollIntoView` would move the page as well.
    const box = this.element.getBoundingClientRect();
    const place = cell.getBoundingClientRect();
    if (place.top < box.top + 40 || place.bottom > box.bottom - 40) this.element.scrollTop += place.top - box.top - box.height / 2;
    if (place.left < box.left + 40 || place.right > box.right - 40) this.element.scrollLeft += place.left - box.left - box.width / 2;
  }
}
