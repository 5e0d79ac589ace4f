// What an annotator has labelled so far, to look at again.

import { ask } from "./api.js";
import { make, moment, table, visible } from "./dom.js";

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
      make(
        "section",
        { class: "page" },
        make("h1", {}, "My solutions"),
        rows.length
          ? table("My solutions", [["Problem", "wide"], "State", "Flag", "Last change"], cells)
          : make("p", { class: "note" }, "Nothing yet: what you label is listed here."),
      ),
    );
  }
}
