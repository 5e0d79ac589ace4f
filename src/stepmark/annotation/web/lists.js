// The pages that are lists: an annotator's solutions; the admin's project (progress, people, agreement, export) and disagreements.

import { button, count, make, page, say, table, visible } from "./dom.js";
import { Failure, ask, call, download } from "./server.js";

const percent = (share) => `${(100 * share).toFixed(0)}%`;
const two = (value) => value.toFixed(2);

/** A figure with the range in which it may as well lie. */
function ranged({ value, low, high }, show) {
  if (value === null) return "–";
  return show(value) + (low === null || high === null ? "" : ` (${show(low)} to ${show(high)})`);
}

class Page {
  item = null;

  constructor(around) {
    Object.assign(this, around);
  }
}

export class MinePage extends Page {
  async open() {
    const rows = await ask("/api/mine", this.away);
    const state = ({ id, submitted }) => {
      const unsent = this.outbox.of(id).length;
      return make("span", { class: `chip ${unsent ? "odd" : submitted ? "good" : "none"}` }, unsent ? `${unsent} not sent` : submitted ? "submitted" : "open");
    };
    const cells = rows.map((row) => [make("a", { href: `#/item/${encodeURIComponent(row.id)}` }, visible(row.title || row.id)), state(row), row.unsure ? "unsure" : ""]);
    const none = make("p", { class: "note" }, "Nothing yet: what you label is listed here.");
    this.main.replaceChildren(page("My solutions", null, rows.length ? table("My solutions", [["Problem", "wide"], "State", ""], cells) : none));
  }
}

const STATES = { open: ["odd", "open"], reopened: ["odd", "an answer changed since"], decided: ["good", "decided"] };

export class DisputesPage extends Page {
  async open() {
    const disputes = await ask("/api/disputes", this.away);
    const open = disputes.filter((one) => one.state !== "decided");
    const path = ({ item }) => `#/dispute/${encodeURIComponent(item)}`;
    const rows = disputes.map((one) => {
      const [kind, words] = STATES[one.state];
      return [make("a", { href: path(one) }, visible(one.title || one.item)), make("span", { class: `chip ${kind}` }, words), visible(one.annotators.join(", "))];
    });
    this.main.replaceChildren(
      page(
        "Disagreements",
        `${open.length} to decide, ${disputes.length} in all. The worst come first.`,
        open.length ? make("p", {}, make("a", { class: "start", href: path(open[0]) }, "Start with the worst")) : null,
        rows.length
          ? table("Disagreements", [["Item", "wide"], "State", ["Answered by", "wide"]], rows)
          : make("p", { class: "note" }, "No disagreements: an item is listed once two people have submitted different answers."),
      ),
    );
  }
}

export class ProjectPage extends Page {
  async open() {
    const { progress, people, agreement, formats } = await ask("/api/project", this.away);
    this.main.replaceChildren(
      page(
        "Project",
        `${progress.submitted} of ${count(progress.of, "answer")} submitted.`,
        make("h2", {}, "People"),
        make("p", { class: "note" }, "Each annotator has a personal link. A person who opens it labels under that name."),
        table("People", [["Name", "wide"], ["Submitted", "number"], ""], people.map(({ name, link, submitted }) => [make("b", {}, visible(name)), submitted, copy(link, name)])),
        this.#add(),
        make("h2", {}, "Agreement"),
        ...agreementOf(agreement),
        make("h2", {}, "Export"),
        make("p", { class: "note" }, "Submitted answers and decisions up to now, one file in each format."),
        make("p", { class: "row" }, formats.map((name) => button(name, () => tried(() => download(`/api/export?format=${name}`))))),
      ),
    );
  }

  #add() {
    const name = make("input", { required: true, maxLength: 60, placeholder: "Name", aria: { label: "Name of an annotator" } });
    const form = make("form", { class: "row" }, name, make("button", { class: "strong" }, "Add"));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (await tried(() => call("POST", "/api/people", { name: name.value }))) await this.open();
    });
    return form;
  }
}

/** A button that copies a link, or shows it where that is not allowed. */
function copy(link, name) {
  const one = button("Copy link", async () => {
    try {
      await navigator.clipboard.writeText(link);
      one.textContent = "Copied";
    } catch {
      const field = make("input", { readOnly: true, value: link, aria: { label: `Link of ${name}` } });
      one.replaceWith(field);
      field.select();
    }
  }, { class: "small", data: { link }, aria: { label: `Copy the link of ${name}` } });
  return one;
}

function agreementOf({ items, annotators, nominal, ordinal, exact, within_one: near, answer_pairs: of }) {
  const why = { "no pairs": "no step was rated twice", "one category": "all ratings are the same" };
  const alpha = (words, { value, units, why: none }) => [words, ranged(value, two), none ? why[none] : count(units, "step")];
  const rows = [
    alpha("Krippendorff's alpha, nominal", nominal),
    alpha("Krippendorff's alpha, ordinal", ordinal),
    ["The same first error", ranged(exact, percent), `${count(of, "pair")} of answers`],
    ["First errors at most one step apart", ranged(near, percent), `${count(of, "pair")} of answers`],
  ];
  if (!items) return [make("p", { class: "note" }, "No item is submitted by two people yet.")];
  return [
    make("p", { class: "note" }, `${count(items, "item")} submitted by two people or more, ${count(annotators, "annotator")}. Ranges are 95% intervals over items. Alpha is 1 for the same rating always, 0 for as often as by chance; ordinal weighs wrong against right more than neutral against either.`),
    table("Agreement", [["What", "wide"], "Figure", "Of"], rows),
  ];
}

async function tried(send) {
  try {
    return (await send()) ?? true;
  } catch (failure) {
    if (!(failure instanceof Failure)) throw failure;
    say(visible(failure.message), { shown: true, bad: true });
    return null;
  }
}
