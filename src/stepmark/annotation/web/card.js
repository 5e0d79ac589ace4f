// One step as a card with its controls; of an agent's step who spoke, the thought, the action, and what came back.

import { button, make, visible } from "./dom.js";
import { answers, longText, output, toolCall } from "./parts.js";

const SIGNS = { "-1": "✗", 0: "○", 1: "✓" };
const KINDS = { "-1": "bad", 0: "warn", 1: "good" };
const ACTIONS = { "-1": "wrong", 0: "neutral", 1: "right" };

const CALL = /^([\w.:-]{1,80})\((\{.*\}|)\)$/; // a line `name(arguments)`, as an agent's calls are written

function saidOf({ speaker, thought, text, observation }, isAgent) {
  const said = make("div", { class: "said" });
  if (speaker) said.append(make("span", { class: "chip speaker" }, visible(speaker)));
  const lines = text.split("\n");
  const calls = [];
  for (let call; isAgent && lines.length && (call = CALL.exec(lines.at(-1))); lines.pop()) calls.unshift(toolCall(call[1], call[2]));
  const action = [lines.join("").trim() ? longText(lines.join("\n").trimEnd()) : null, ...calls];
  if (!thought) said.append(...action.filter(Boolean));
  else said.append(make("div", { class: "pair" }, make("div", { class: "thought" }, make("span", { class: "label" }, "thought"), longText(thought)), make("div", {}, action)));
  for (const { role, name, text: answer } of answers(observation)) {
    if (role === "Tool") said.append(output(answer, name || "tool"));
    else said.append(make("div", { class: "turn" }, make("span", { class: "label" }, visible(name || role)), longText(answer)));
  }
  return said;
}

export class Card {
  #painted = null;

  /** `list`: the `StepList` that it is in. */
  constructor(row, list) {
    this.step = row.step;
    this.list = list;
    this.marks = make("div", { class: "marks", attr: { role: "group" }, aria: { label: `Mark of step ${this.step + 1}` } });
    this.skipped = make("span", { class: "skipped", hidden: true }, "not judged");
    this.more = make("div", { class: "more" });
    this.element = make(
      "li",
      { class: "step", id: `step-${this.step}`, tabIndex: -1, data: { step: this.step } },
      make("div", { class: "n", aria: { hidden: "true" } }, String(this.step + 1)),
      saidOf(row, list.work.view.agent),
      this.marks,
      list.aside?.(this.step),
      this.more,
    );
    const { mode, allowNeutral } = list.work.folding;
    if (mode === "first_error") this.#mark(-1, list.work.view.agent ? "Decisive error" : "First error");
    else for (const rating of allowNeutral ? [-1, 0, 1] : [-1, 1]) this.#mark(rating, visible(list.words[rating]));
    this.marks.append(this.skipped);
  }

  #mark(rating, words) {
    const { list, step } = this;
    this.marks.append(
      button([make("b", { aria: { hidden: "true" } }, SIGNS[rating]), make("span", {}, words)], () => list.press(ACTIONS[rating], step), {
        class: `mark ${KINDS[rating]}`,
        title: words,
        data: { rating },
        aria: { pressed: "false", label: words },
      }),
    );
  }

  forget() {
    this.#painted = null;
  }

  /** Paint what is said of the step, if it is another than last time. */
  paint(state, here) {
    const { list, step, element } = this;
    const { folding, helped } = list.work;
    const own = [folding.unsure(step), folding.verified(step), folding.submitted, helped, folding.errorType(step), folding.note(step)];
    const key = [state, here, ...own].join("\n");
    if (this.#painted === key) return;
    this.#painted = key;
    element.dataset.state = state;
    element.classList.toggle("here", here);
    element.tabIndex = here ? 0 : -1;
    element.setAttribute("aria-label", list.said(step, state));
    this.skipped.hidden = state !== "unjudged" || here;
    const rating = folding.rating(step);
    const shown = folding.mode === "first_error" && rating !== -1 ? null : String(rating);
    for (const one of this.marks.querySelectorAll("button")) {
      one.setAttribute("aria-pressed", String(one.dataset.rating === shown));
      one.disabled = folding.submitted;
      one.tabIndex = here ? 0 : -1;
    }
    this.#below(here ? 0 : -1);
  }

  /** The line below a step: suggestion, note, flags. While a note is being written it stays as it is. */
  #below(tabIndex) {
    if (this.more.querySelector("textarea")) return;
    const { list, step } = this;
    const { folding, project, suggestions } = list.work;
    const disabled = folding.submitted;
    const small = (words, action, pressed, title) =>
      button(words, () => list.press(action, step), { class: "small", title, tabIndex, disabled, aria: { pressed: String(Boolean(pressed)) } });
    const note = folding.note(step);
    const type = folding.errorType(step);
    this.more.replaceChildren(
      ...(suggestions?.[step] ? [this.#suggestion(suggestions[step], tabIndex)] : []),
      ...(note ? [button(visible(note), () => list.press("note", step), { class: "written", tabIndex, disabled, title: "Change the note (m)" })] : []),
      make(
        "div",
        { class: "tools" },
        list.work.isFinal ? null : small("Unsure", "unsure", folding.unsure(step), "Unsure of this step (u)"),
        note ? null : small("Note", "note", false, "Note on this step (m)"),
        project.error_types.length && folding.rating(step) === -1 ? small(visible(type ?? "Error type"), "type", type, "Type of the error (t)") : null,
      ),
    );
  }

  #suggestion({ judge, rating, score, reason }, tabIndex) {
    const { list, step } = this;
    const { folding } = list.work;
    const own = folding.rating(step);
    const isOther = rating !== null && own !== null && own !== rating;
    return make(
      "div",
      { class: `suggestion ${KINDS[rating] ?? ""}` },
      make("span", { class: "who" }, visible(judge)),
      rating === null ? null : make("b", {}, `${SIGNS[rating]} ${visible(list.words[rating].toLowerCase())}`),
      score === null || score === undefined ? null : make("span", { class: "score" }, score.toFixed(2)),
      folding.verified(step)
        ? make("span", { class: "done" }, isOther ? "overridden" : "accepted")
        : button("Accept", () => list.press("accept", step), { class: "small", tabIndex, title: "Accept (a)", disabled: folding.submitted }),
      reason ? make("p", { class: "reason" }, visible(reason)) : null,
    );
  }
}
