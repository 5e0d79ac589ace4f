// What stands around every page: the head with its ways, the progress, and who is logged in.

import { ask, call } from "./api.js";
import { button, duration, make, visible } from "./dom.js";
import { showHelp } from "./help.js";

const WAYS = {
  annotator: [["#/label", "Label"], ["#/mine", "My solutions"]],
  adjudicator: [["#/disputes", "Disagreements"], ["#/label", "Label"], ["#/mine", "My solutions"]],
  admin: [["#/label", "Label"], ["#/mine", "My solutions"], ["#/progress", "Progress"], ["#/agreement", "Agreement"], ["#/disputes", "Disagreements"], ["#/people", "People"], ["#/items", "Items and export"], ["#/audit", "Audit log"]],
};

export class Shell {
  constructor(place, me) {
    this.me = me;
    this.bar = make("div", { class: "meter" }, make("i"));
    this.done = make("span", { class: "note" });
    this.held = button("", () => (location.hash = `#/item/${encodeURIComponent(this.heldItem)}`), { class: "small bad", hidden: true });
    this.ways = make("nav", { class: "ways", aria: { label: "Pages" } });
    for (const [href, words] of WAYS[me.role] ?? []) this.ways.append(make("a", { href }, words));
    document.title = `${me.project.name} – stepmark`;
    place.replaceChildren(
      make("a", { class: "skip", href: "#main", on: { click: (event) => (event.preventDefault(), document.getElementById("main").focus()) } }, "To the content"),
      make("strong", { class: "brand" }, visible(me.project.name)),
      this.ways,
      make("div", { class: "progress" }, this.bar, this.done),
      this.held,
      make("div", { class: "who" }, make("span", { class: "note" }, visible(me.name)), button("?", () => this.help(), { class: "quiet", aria: { label: "Help: keys" } }), button("Log out", () => this.logout(), { class: "quiet" })),
    );
    this.#progress();
  }

  help() {
    const { project, role } = this.me;
    const when = new Set([project.mode, role === "annotator" ? "labelling" : "deciding"]);
    if (project.allow_neutral) when.add("neutral");
    if (project.error_types.length) when.add("types");
    if (project.help.show !== "never") when.add("help");
    showHelp(project, when);
  }

  async logout() {
    await call("POST", "/api/logout", {});
    location.hash = "";
    location.reload();
  }

  here(hash) {
    for (const way of this.ways.children) {
      const isHere = hash.startsWith(way.hash) || (way.hash === "#/label" && hash.startsWith("#/item/")) || (way.hash === "#/disputes" && hash.startsWith("#/dispute/"));
      way.toggleAttribute("aria-current", isHere);
      if (!isHere) continue;
      way.setAttribute("aria-current", "page");
      way.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
  }

  /** Ask how far this account is. */
  async progress() {
    Object.assign(this.me, await ask("GET", "/api/me"));
    this.#progress();
  }

  #progress() {
    const { progress, screening } = this.me;
    const place = this.bar.parentElement;
    if (!progress || this.me.role !== "annotator") return void (place.hidden = true);
    const inTest = screening && screening.passed === null;
    const [done, of] = inTest ? [screening.done, screening.of] : [progress.submitted, progress.of];
    this.bar.firstChild.style.width = of ? `${Math.min(100, (100 * done) / of)}%` : "0";
    const each = !inTest && progress.seconds_each ? ` · ${duration(progress.seconds_each)} each` : "";
    this.done.textContent = `${inTest ? "test: " : ""}${done} of ${of}${each}`;
    return undefined;
  }

  /** Items other than the open one whose changes wait for a decision. */
  paint(outbox, open = null) {
    this.heldItem = outbox.heldItems.find((item) => item !== open);
    this.held.hidden = this.heldItem === undefined;
    this.held.textContent = "View unsent changes";
  }
}
