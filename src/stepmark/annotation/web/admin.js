// The admin's pages of figures: progress of each annotator and of all, agreement, the audit log.

import { ask } from "./api.js";
import { button, count, digits, duration, make, moment, page, percent, table, visible } from "./dom.js";
import { ItemsPage } from "./items.js";
import { PeoplePage } from "./people.js";

function tile(figure, words) {
  return make("div", { class: "tile" }, make("b", {}, figure), make("span", {}, words));
}

/** A figure with the range in which it may as well lie. */
function ranged(interval, show) {
  if (!interval || interval.value === null) return "–";
  const range = interval.low === null || interval.high === null ? "" : ` (${show(interval.low)} to ${show(interval.high)})`;
  return show(interval.value) + range;
}

const PAGE = 200; // lines of the audit log at once, as the server sends them

const REFRESH = 10; // seconds

const two = (value) => digits(value, 2);

class ProgressPage {
  item = null;

  constructor({ main }) {
    this.main = main;
  }

  stop() {
    this.isLeft = true;
    clearTimeout(this.timer);
  }

  async open() {
    const { project, annotators } = await ask("GET", "/api/admin/progress");
    if (this.isLeft) return;
    this.timer = setTimeout(() => this.open(), 1000 * REFRESH);
    const bar = make("i");
    bar.style.width = project.of ? percent(project.submitted / project.of) : "0";
    const rows = annotators.map((one) => [
      make("b", {}, visible(one.account)),
      `${one.progress.submitted} of ${one.progress.of}`,
      duration(one.progress.seconds_each),
      duration(one.seconds_a_step),
      one.gold?.items ? `${ranged(one.gold.exact, percent)} of ${one.gold.items}` : "–",
      one.passed === null || one.passed === undefined ? "–" : one.passed ? "passed" : "not passed",
      one.overridden.of ? `${percent(one.overridden.value)} of ${one.overridden.of}` : "–",
    ]);
    const heads = ["Annotator", ["Submitted", "number"], ["Each item", "number"], ["Each step", "number"], "Right on gold items", "Screening", "Suggestions overridden"];
    this.main.replaceChildren(
      page(
        "Progress",
        "Only submitted items count. Each item needs as many answers as the project's overlap.",
        make(
          "div",
          { class: "tiles" },
          tile(`${project.submitted} of ${project.of}`, "answers"),
          tile(project.of ? percent(project.submitted / project.of) : "–", "done"),
          tile(duration(project.seconds_each), "per item"),
          tile(duration(project.work_left), "of work left"),
        ),
        make("div", { class: "meter long", aria: { hidden: "true" } }, bar),
        rows.length ? table("Annotators", heads, rows) : make("p", {}, "No labels yet: ", make("a", { href: "#/people" }, "invite people"), " or ", make("a", { href: "#/label" }, "label yourself"), "."),
      ),
    );
  }
}

class AgreementPage {
  item = null;

  constructor({ main }) {
    this.main = main;
  }

  async open() {
    const found = await ask("GET", "/api/admin/agreement");
    const why = { "no pairs": "no step was rated twice", "one category": "all ratings are the same" };
    const alpha = ({ value, units, why: none }, words, about) => [words, ranged(value, two), none ? (why[none] ?? none) : count(units, "step"), about];
    const rows = [
      alpha(found.nominal, "Krippendorff's alpha, nominal", "1: always the same rating; 0: as often as by chance."),
      alpha(found.ordinal, "Krippendorff's alpha, ordinal", "The same, where wrong against right weighs more than neutral against either."),
      ["The same first error", ranged(found.exact, percent), `${count(found.answer_pairs, "pair")} of answers`, "The same step, or no error in both."],
      ["First errors at most one step apart", ranged(found.within_one, percent), `${count(found.answer_pairs, "pair")} of answers`, "An error and no error are never within one step."],
    ];
    const pairs = found.pairs.map(({ annotators, items, exact, within_one: near }) => [annotators.join(" and "), String(items), ranged(exact, percent), ranged(near, percent)]);
    this.main.replaceChildren(
      page(
        "Agreement",
        `${count(found.items, "item")} submitted by two people or more, ${count(found.annotators, "annotator")}. Ranges are 95% bootstrap intervals over items.`,
        table("Agreement", ["What", "Figure", "Of", ["Meaning", "wide"]], rows),
        pairs.length ? make("h2", {}, "By pair") : null,
        pairs.length ? table("Agreement by pair", ["Annotators", ["Items", "number"], "Same first error", "Within one"], pairs) : null,
      ),
    );
  }
}

class AuditPage {
  item = null;

  constructor({ main }) {
    this.main = main;
  }

  async open() {
    const { entries } = await ask("GET", "/api/admin/audit");
    this.main.replaceChildren(page("Audit log", "Who did what, newest first. Labels are not here: each has its own log.", this.#table(entries)));
  }

  #table(entries) {
    const rows = entries.map(({ at, account, action, detail }) => [moment(at), account ?? "–", action, make("code", {}, visible(JSON.stringify(detail)))]);
    const older = button("Older", async () => {
      const { entries: more } = await ask("GET", `/api/admin/audit?before=${entries.at(-1).id}`);
      older.replaceWith(more.length ? this.#table(more) : make("p", { class: "note" }, "That is the beginning."));
    });
    return make("div", {}, table("Audit log", ["When", "Who", "What", ["Details", "wide"]], rows), make("p", { class: "row" }, entries.length < PAGE ? "" : older));
  }
}

export function adminPage(name, around) {
  return new { progress: ProgressPage, agreement: AgreementPage, audit: AuditPage, people: PeoplePage, items: ItemsPage }[name](around);
}
