// Who takes part: accounts, and links that invite.

import { Failure, ask, call } from "./api.js";
import { button, copied, dialog, make, moment, page, table, visible } from "./dom.js";

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
    const accounts = await ask("GET", "/api/admin/accounts");
    this.said = make("p", { class: "trouble", attr: { role: "status" } });
    const rows = accounts.map((one) => [make("b", {}, visible(one.name)), this.#role(one), one.disabled ? make("span", { class: "chip bad" }, "disabled") : make("span", { class: "chip good" }, "active"), moment(one.created), this.#can(one)]);
    this.main.replaceChildren(
      page(
        "People",
        null,
        make("h2", {}, "Invite"),
        make("p", { class: "note" }, "A person who opens the link chooses a name and joins. It is shown only now: send it to nobody else."),
        this.#invite(),
        make("h2", {}, "Accounts"),
        this.said,
        table("Accounts", ["Name", "Role", "State", "Since", ""], rows),
      ),
    );
  }

  #role(one) {
    if (one.name === this.me.name) return one.role;
    const pick = ({ target }) => this.#change({ name: one.name, role: target.value });
    return make("select", { aria: { label: `Role of ${one.name}` }, on: { change: pick } }, ROLES.map((role) => make("option", { value: role, selected: role === one.role }, role)));
  }

  #can(one) {
    if (one.name === this.me.name) return make("span", { class: "note" }, "you");
    const words = one.disabled ? "Enable" : "Disable";
    const shut = button(words, () => this.#change({ name: one.name, disabled: !one.disabled }), { class: one.disabled ? "small" : "small bad" });
    const renew = button("New token", () => this.#change({ name: one.name, new_token: true }), { class: "small", title: "In the place of a lost one, which no longer works then" });
    return make("span", { class: "row" }, renew, shut);
  }

  async #change(body) {
    const done = await tried(this.said, () => call("POST", "/api/admin/accounts", body));
    if (done === null) return;
    await this.open();
    if (done.token) dialog(`New token of ${visible(done.name)}`, make("p", {}, "Give it to them alone. It is shown only now."), copied(done.token, "New token"));
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
      make("button", { class: "strong" }, "Invite"),
    );
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const body = { role: role.value, uses: Number(uses.value), hours: Number(hours.value) };
      const answer = await tried(said, () => call("POST", "/api/admin/invitations", body));
      if (answer === null) return;
      made.replaceChildren(copied(answer.link, "Invitation link"));
    });
    return make("div", {}, form, made, said);
  }
}
