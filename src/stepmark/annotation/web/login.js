// Joining by an invitation, logging in by a token, and logging in again when a session has ended.

import { Failure, call } from "./api.js";
import { button, copied, dialog, make, visible } from "./dom.js";

function field(label, props) {
  const one = make("input", { required: true, ...props });
  return [make("label", {}, label, one), one];
}

/** A form that says what went wrong above its button. */
function form(words, send, ...content) {
  const trouble = make("p", { class: "trouble", attr: { role: "alert" } });
  const go = make("button", { class: "strong" }, words);
  const one = make("form", { class: "entry" }, ...content, trouble, go);
  one.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    trouble.textContent = "";
    try {
      await send();
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      trouble.textContent = visible(failure.message) + (failure.wait ? ` Try again in ${Math.ceil(failure.wait)} s.` : "");
    } finally {
      go.disabled = false;
    }
  });
  return one;
}

function page(title, ...content) {
  return make("section", { class: "gate" }, make("h1", {}, title), ...content);
}

function loginForm(done) {
  const [label, token] = field("Your token", { type: "password", autocomplete: "current-password", spellcheck: false });
  return form("Log in", async () => done(await call("POST", "/api/login", { token: token.value.trim() })), label);
}

/** The page of somebody without a session. */
export function loginPage(main) {
  main.replaceChildren(
    page(
      "Log in",
      loginForm(() => location.replace("/")),
      make("p", { class: "note" }, "The token was shown when you joined. Without one, open the invitation link that you were sent, or ask an admin of this project."),
    ),
  );
  main.querySelector("input").focus();
}

/** The page behind an invitation link; its code is in the address behind "#", which no server log sees. */
export function joinPage(main) {
  const code = decodeURIComponent(location.hash.slice(1));
  history.replaceState(null, "", "/join");
  const [codeLabel, codeField] = field("Invitation code", { value: code, autocomplete: "off", spellcheck: false });
  const [nameLabel, name] = field("Your name", { autocomplete: "nickname", maxLength: 60 });
  const send = async () => joined(main, await call("POST", "/api/join", { code: codeField.value.trim(), name: name.value.trim() }));
  codeLabel.hidden = Boolean(code);
  main.replaceChildren(
    page("Join this labelling project", form("Join", send, codeLabel, nameLabel), make("p", { class: "note" }, "Your name is stored with your labels. A pseudonym is fine.")),
  );
  (code ? name : codeField).focus();
}

function joined(main, { name, role, token }) {
  main.replaceChildren(
    page(
      `Welcome, ${visible(name)}`,
      make("p", {}, `Your role is ${role}. Keep this token: it is shown only now, and you log in with it from another browser.`),
      copied(token, "Your token"),
      button("Start", () => location.replace("/"), { class: "strong" }),
    ),
  );
}

let asking = null;

/** Ask for the token over the page that is open; resolves when the session holds again. Asks once however many wait. */
export function loginAgain(name) {
  asking ??= new Promise((done) => {
    const box = dialog(
      "Your session has ended",
      make("p", {}, `Nothing is lost: what is not sent yet is kept in this browser. Log in again as ${visible(name)}.`),
      loginForm(() => {
        isIn = true;
        box.close();
        done();
      }),
    );
    let isIn = false;
    box.querySelector("input").focus();
    // Closed without a login: the work goes on, and the next thing that needs the server asks again.
    box.addEventListener("close", () => isIn || setTimeout(done, 3000));
  }).finally(() => (asking = null));
  return asking;
}
