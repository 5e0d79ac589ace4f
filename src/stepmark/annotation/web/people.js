// Who takes part: accounts, and links that invite.

import { Failure, ask, call } from "./api.js";
import { button, make, moment, table, visible } from "./dom.js";

const ROLES = ["annotator", "adjudicator", "admin"];

/** Send, and say beside the form how it went. */
export async function tried(place, send) {
  place.className = "trouble";
  place.textContent = "";
  try {
    return await send();
  } catch (failure) {
    if (!(failure instanceof Failure)) throw failure;
    place.textContent = visible(failure.message);
    return null;
  }
}

export class PeoplePage {
  item = null;

  constructor({ main, me }) {
    Object.assign(this, { main, me });
  }

  async open() {
    const found = await ask("GET", "/api/admin/accounts");
    const accounts = Array.isArray(found) ? found : found.accounts;
    this.said = make("p", { class: "trouble", attr: { role: "status" } });
    const rows = accounts.map((one) => [make("b", {}, visible(one.name)), one.role, one.disabled ? make("span", { class: "chip bad" }, "shut out") : make("span", { class: "chip good" }, "active"), moment(one.created), this.#can(one)]);
    this.main.replaceChildren(
      make(
        "section",
        { class: "page" },
        make("h1", {}, "People"),
        make("h2", {}, "Invite"),
        make("p", { class: "note" }, "Whoever opens the link chooses a name and is in. Send it to them alone: it is shown only now."),
        this.#invite(),
        make("h2", {}, "Accounts"),
        this.said,
        table("Accounts", ["Name", "Role", "State", "Since", ""], rows),
      ),
    );
  }

  #can(one) {
    if (one.name === this.me.name) return make("span", { class: "note" }, "you");
    const words = one.disabled ? "Let in again" : "Shut out";
    return button(words, () => this.#change({ name: one.name, disabled: !one.disabled }), { class: one.disabled ? "small" : "small bad" });
  }

  async #change(body) {
    const done = await tried(this.said, () => call("POST", "/api/admin/accounts", body));
    if (done !== null) await this.open();
  }

  #invite() {
    const role = make("select", {}, ROLES.map((name) => make("option", { value: name }, name)));
    const uses = make("input", { type: "number", min: "1", max: "1000", value: "1", required: true });
    const hours = make("input", { type: "number", min: "1", max: "8760", value: "72", required: true });
    const made = make("div", { class: "made", aria: { live: "polite" } });
    const said = make("p", { class: "trouble", attr: { role: "alert" } });
    const form = make(
      "form",
      { class: "form" },
      make("label", {}, "Role", role),
      make("label", {}, "For how many people", uses),
      make("label", {}, "Valid for hours", hours),
      make("button", { class: "strong" }, "Make a link"),
    );
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const body = { role: role.value, uses: Number(uses.value), hours: Number(hours.value) };
      const answer = await tried(said, () => call("POST", "/api/admin/invitations", body));
      if (answer === null) return;
      const link = make("input", { readOnly: true, value: new URL(answer.link, location.href).href, aria: { label: "Invitation link" } });
      const copy = button("Copy", async () => {
        link.select();
        try {
          await navigator.clipboard.writeText(link.value);
          copy.textContent = "Copied";
        } catch {
          copy.textContent = "Selected: press Ctrl+C";
        }
      });
      made.replaceChildren(link, copy);
      link.select();
    });
    return make("div", {}, form, made, said);
  }
}
