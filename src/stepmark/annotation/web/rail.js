// The rail: one small cell a step, coloured by what is said of it.

import { make } from "./dom.js";

const BOX = 50; // cells of a group, which the browser lays out together

export class Rail {
  #cells = [];
  #painted = []; // what each cell shows
  #words = [];
  #current = null;

  constructor(steps, go) {
    this.element = make("nav", { class: "rail", aria: { label: "Steps" } });
    for (let at = 0; at < steps; at += BOX) {
      const size = Math.min(BOX, steps - at);
      const cells = Array.from({ length: size }, (_, k) => make("button", { type: "button", tabIndex: -1, class: "none", data: { step: at + k } }, String(at + k + 1)));
      this.#cells.push(...cells);
      const box = make("div", { class: "group" }, cells);
      box.style.setProperty("--cells", size);
      this.element.append(box);
    }
    this.element.addEventListener("click", ({ target }) => {
      const { step } = target.dataset;
      if (step !== undefined) go(Number(step));
    });
  }

  #show(step) {
    const cell = this.#cells[step];
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
    if (before !== null) this.#show(before);
    this.#show(step);
    // Only the rail itself scrolls: `scrollIntoView` would move the page as well.
    const box = this.element.getBoundingClientRect();
    const place = this.#cells[step].getBoundingClientRect();
    if (place.top < box.top + 40 || place.bottom > box.bottom - 40) this.element.scrollTop += place.top - box.top - box.height / 2;
    if (place.left < box.left + 40 || place.right > box.right - 40) this.element.scrollLeft += place.left - box.left - box.width / 2;
  }
}
