// Two lists of items: what an annotator has labelled so far, and those on which annotators disagree, worst first.

import { ask } from "./api.js";
import { make, moment, page, percent, table, visible } from "./dom.js";

const STATES = { open: ["odd", "open"], reopened: ["odd", "an answer changed since"], decided: ["good", "decided"] };

export const disputePath = (item) => `#/dispute/${encodeURIComponent(item)}`;

export class DisputesPage {
  item = null;

  constructor({ main }) {
    this.main = main;
  }

  async open() {
    const { disputes, total } = await ask("GET", "/api/disputes");
    const open = disputes.filter((one) => one.state !== "decided");
    const rows = disputes.map((one) => {
      const bar = make("i");
      bar.style.width = percent(one.severity);
      const [kind, words] = STATES[one.state];
      return [
        make("a", { href: disputePath(one.item) }, visible(one.title || one.item)),
        make("span", { class: "severity" }, make("span", { class: "meter bad", aria: { hidden: "true" } }, bar), one.severity.toFixed(2)),
        one.why,
        make("span", { class: `chip ${kind}` }, words),
      ];
    });
    this.main.replaceChildren(
      page(
        "Disagreements",
        `${open.length} to decide, ${total} in all. The worst come first.`,
        open.length ? make("p", {}, make("a", { class: "go", href: disputePath(open[0].item) }, "Start with the worst")) : null,
        rows.length
          ? table("Disagreements", ["Item", ["Severity", "number"], ["Why", "wide"], "State"], rows)
          : make("p", { class: "note" }, "No disagreements: an item is listed once two people have submitted different answers."),
      ),
    );
  }
}

export class MinePage {
  item = null;

  constructor({ main, outbox }) {
    Object.assign(this, { main, outbox });
  }

  async open() {
    const rows = await ask("GET", "/api/mine");
    const unsent = (id) => this.outbox.of(id).length;
    const state = ({ id, submitted }) =>
      make("span", { class: `chip ${unsent(id) ? "odd" : submitted ? "good" : "none"}` }, unsent(id) ? `${unsent(id)} not sent` : submitted ? "submitted" : "open");
    const cells = rows.map((row) => [
      make("a", { href: `#/item/${encodeURIComponent(row.id)}` }, visible(row.title || row.id)),
      state(row),
      row.unsure ? "unsure" : "",
      moment(row.at),
    ]);
    this.main.replaceChildren(
      page(
        "My solutions",
        null,
        rows.length
          ? table("My solutions", [["Problem", "wide"], "State", "Flag", "Last change"], cells)
          : make("p", { class: "note" }, "Nothing yet: what you label is listed here."),
      ),
    );
  }
}
